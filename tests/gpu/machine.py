"""Where the acceptance runs: GPUs with an unpacked kit, or this computer's CPU as a rehearsal."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PLUGINS = Path(__file__).parent / "plugins"
ENGINE_KIT = PROJECT / "tests" / "engine" / "kit"


@dataclass(frozen=True)
class Machine:
    """How engines and moeplan's commands are started here.

    Attributes
    ----------
    device : {"cuda", "cpu"}
    gpus : int
        Ranks of every engine.
    root : Path
        For everything unpacked or written, logs included.
    engine_python : str
        Interpreter with SGLang.
    engine_folders, tool_folders : tuple of Path
        Searched for modules by an engine, and by moeplan's commands.
    """

    device: str
    gpus: int
    root: Path
    engine_python: str
    engine_folders: tuple[Path, ...]
    tool_folders: tuple[Path, ...]

    @property
    def model_dtype(self) -> str:
        return "bfloat16" if self.device == "cuda" else "float32"

    def engine_variables(self, folder: Path, *, all_to_all: bool) -> dict[str, str]:
        """Return the environment of an engine.

        Parameters
        ----------
        folder
            For the engine's own files.
        all_to_all
            With the stand-in for DeepEP on the path.
        """
        plugins = [PLUGINS / "probe"]
        if self.device == "cuda":
            plugins += [PLUGINS / "host", self.root / "plugin"]
            plugins += [self.root / "stand_in"] if all_to_all else []
        else:
            plugins += [ENGINE_KIT / "cpu_shim", *([ENGINE_KIT / "all_to_all"] if all_to_all else [])]
        path = [*plugins, *self.engine_folders, PROJECT]
        common = {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONUNBUFFERED": "1",
            "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(folder / "dumps"),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return {**os.environ, **common, **(_GPU_VARIABLES if self.device == "cuda" else _CPU_VARIABLES), **self._jit()}

    def _jit(self) -> dict[str, str]:
        kernels = self.root / "jit" / "tvm-ffi"
        return {"TVM_FFI_CACHE_DIR": str(kernels)} if kernels.exists() else {}

    def tool_variables(self) -> dict[str, str]:
        """Return the environment of moeplan's commands and of this run's own processes."""
        path = [PROJECT, *self.tool_folders]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "MOEPLAN_DATA_DIR": str(self.root / "moeplan"),
            # Several run at a time, beside engines that keep cores busy: one thread a core of each would stall all.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2"),
            "PYTHONUNBUFFERED": "1",
            **(_NO_MULTICAST if self.device == "cuda" else {}),  # for ``moeplan calibrate``
        }


_NO_MULTICAST = {  # NVLink multicast stays off, see plugins/host.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
_GPU_VARIABLES = {
    **_NO_MULTICAST,
    "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
    "TORCHDYNAMO_DISABLE": "1",
    # Engines start side by side, so that free memory differs from rank to rank meanwhile.
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false",
}
_CPU_VARIABLES = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|1", "DUMPER_SERVER_PORT": "reuse"}


def gpu_machine(root: Path, *, gpus: int) -> Machine:
    """Return this machine, with the kit that ``run.sh`` has unpacked in ``root``."""
    for stale in (root / "site").glob("eplb_push_plugin*"):  # an older plugin with the same hooks
        shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
    _write_plugin_metadata(root / "plugin")
    # Without the plugin beside it, which replaces GPU kernels by plain torch.
    shutil.copytree(ENGINE_KIT / "all_to_all" / "deep_ep", root / "stand_in" / "deep_ep", dirs_exist_ok=True)
    return Machine(
        device="cuda",
        gpus=gpus,
        root=root,
        engine_python=sys.executable,
        engine_folders=(root / "site",),
        tool_folders=(root / "plugin", root / "tools", root / "site"),
    )


def cpu_machine(environment: Path, root: Path) -> Machine:
    """Return this computer with an environment made by ``tests/engine/kit/setup.sh``."""
    root.mkdir(parents=True, exist_ok=True)
    return Machine(
        device="cpu",
        gpus=2,
        root=root,
        engine_python=str(environment / "bin" / "python"),
        engine_folders=(),
        tool_folders=(),
    )


def _write_plugin_metadata(folder: Path) -> None:
    """Let SGLang find moeplan's plugin in the checkout, as ``pip install --no-deps`` would."""
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    info = folder / f"moeplan-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: moeplan\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nmoeplan = profiler.plugin:register\n")
