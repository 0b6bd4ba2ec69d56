"""SGLang's own EPLB, run from its wheel in a virtual environment of its own, for comparison in the same run.

The wheel is installed without its dependencies; the algorithm needs only torch, which is borrowed from the environment
that runs the benchmark. Nothing of SGLang is imported into this process.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[3]
PEER_VENV = ROOT / ".venv-peers"
SGLANG_VERSION = "0.5.23"

CHILD = """
import importlib.util, sys, time
import numpy as np, torch
path, job, threads = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[4])
torch.set_num_threads(threads)
spec = importlib.util.spec_from_file_location("eplb_deepseek", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
weight = torch.from_numpy(job["tokens_LE"])
seconds = []
for _ in range(int(job["runs"])):
    started = time.perf_counter()
    slots, _, _ = module.rebalance_experts(
        weight=weight, num_replicas=int(job["slots"]), num_groups=int(job["groups"]), num_nodes=int(job["nodes"]),
        num_gpus=int(job["gpus"]), enable_hierarchical=bool(job["hierarchical"]),
    )
    seconds.append(time.perf_counter() - started)
np.savez(sys.argv[3], slots_LP=slots.numpy(), seconds=np.array(seconds))
"""


@dataclass(frozen=True)
class PeerRun:
    """What SGLang's algorithm made: its map and the seconds of every run."""

    slots_LP: npt.NDArray[np.int64]
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))


def run_sglang_eplb(
    tokens_LE: npt.NDArray[np.integer],
    *,
    slots: int,
    gpus: int,
    nodes: int = 1,
    groups: int | None = None,
    runs: int = 5,
    threads: int = 1,
) -> PeerRun:
    """Run SGLang's ``deepseek`` algorithm on counts [L, E]; hierarchical where groups are given."""
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder) / "job.npz", Path(folder) / "result.npz"
        np.savez(
            job,
            tokens_LE=tokens_LE.astype(np.int64),
            slots=slots,
            gpus=gpus,
            nodes=nodes,
            groups=groups or 1,
            hierarchical=groups is not None,
            runs=runs,
        )
        command = [
            str(_peer_python()),
            "-W",
            "ignore",
            "-c",
            CHILD,
            str(_algorithm()),
            str(job),
            str(result),
            str(threads),
        ]
        subprocess.run(command, check=True)
        with np.load(result) as made:
            return PeerRun(made["slots_LP"], tuple(made["seconds"].tolist()))


def _peer_python() -> Path:
    python = PEER_VENV / "bin" / "python"
    if not python.exists():
        print(f"Installing sglang {SGLANG_VERSION} without dependencies into {PEER_VENV.name} ...", flush=True)
        venv.create(PEER_VENV, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", f"sglang=={SGLANG_VERSION}"]
        subprocess.run(pip, check=True)
        borrowed = PEER_VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (borrowed / "moeplan_torch.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def _algorithm() -> Path:
    (found,) = PEER_VENV.glob("lib/python*/site-packages/sglang/srt/eplb/eplb_algorithms/deepseek.py")
    return found
