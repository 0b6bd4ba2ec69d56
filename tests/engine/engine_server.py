"""Starts and stops a real SGLang on the CPU: two ranks, expert parallelism over gloo, float32."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

KIT = Path(__file__).parent / "kit"
START_LIMIT_S = 600.0
REDUNDANT = 8


@dataclass(frozen=True)
class EngineSetup:
    """How an engine is started.

    Attributes
    ----------
    arguments : tuple of str
        More server arguments; a later one overrides an earlier one.
    plugins : tuple of str
        Folders of the kit whose plugins are loaded beside moeplan's.
    dispatch : str or None
        ``--ep-dispatch-algorithm``; None starts the engine without one.
    admin_key : str
        ``--admin-api-key``, empty for none; the client sends it.
    balances : bool
        Whether moeplan's plugin is told to be the engine's balancer.
    moeplan_from : str
        Folder whose moeplan is loaded: this checkout. Empty for what is installed in the environment.
    """

    arguments: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ("cpu_shim", "faults")
    dispatch: str | None = "dynamic"
    admin_key: str = ""
    balances: bool = False
    moeplan_from: str = str(KIT.parents[2])

    @property
    def all_arguments(self) -> tuple[str, ...]:
        dispatch = ("--ep-dispatch-algorithm", self.dispatch) if self.dispatch else ()
        key = ("--admin-api-key", self.admin_key) if self.admin_key else ()
        return (*dispatch, *key, *self.arguments)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin_key}"} if self.admin_key else {}

    @property
    def variables(self) -> dict[str, str]:
        # Opens SGLang's route for control messages, which the all-to-all plugin answers (and makes its debugger wrap
        # the model, so it is left out elsewhere).
        control = {"DUMPER_SERVER_PORT": "reuse"} if "all_to_all" in self.plugins else {}
        return control | ({"MOEPLAN_PLUGIN_EPLB": "1"} if self.balances else {})


PLAIN = EngineSetup()
"""Both ranks see every token: no all-to-all backend, no DP attention."""

PROTECTED_WITHOUT_DISPATCH = EngineSetup(dispatch=None, admin_key="engine-admin")
"""Takes expert ids for slots, so that no layout can be pushed; its routes ask for the admin key."""

DP_ATTENTION = EngineSetup(arguments=("--enable-dp-attention", "--dp", "2"))
"""Two data-parallel ranks, each with its own requests, whose tokens are gathered before the experts."""

ALL_TO_ALL = EngineSetup(
    arguments=(
        *DP_ATTENTION.arguments,
        *("--moe-a2a-backend", "deepep", "--deepep-mode", "normal", "--deepep-dispatcher-output-dtype", "bf16"),
    ),
    plugins=("cpu_shim", "faults", "all_to_all"),
)
"""Two data-parallel ranks that send tokens to each other: SGLang's "nearest" dispatch, over gloo."""

INT8 = EngineSetup(plugins=("cpu_shim", "faults", "int8"))
"""For a checkpoint whose experts are int8."""

INSTALLED = EngineSetup(moeplan_from="")
"""With the moeplan that is installed in its environment."""

OTHER_MODEL = EngineSetup(arguments=("--ep-num-redundant-experts", "0"), dispatch=None)
"""For a model that SGLang serves with the trivial layout only; with a dispatch algorithm its first request ends it."""

REBALANCE_STEPS = 60

BALANCING = EngineSetup(
    arguments=(
        "--enable-eplb",
        *("--eplb-rebalance-num-iterations", str(REBALANCE_STEPS)),
        *("--expert-distribution-recorder-buffer-size", str(REBALANCE_STEPS)),
    ),
    balances=True,
)
"""Rebalances by itself every so many steps, with moeplan's layouts."""


@dataclass
class EngineServer:
    """A running SGLang.

    Attributes
    ----------
    url, version : str
    home_ranks : bool
        Whether requests live on ranks, whose tokens travel to others.
    admin_key : str
        Empty for none.
    fault_file : Path
        What the faults plugin of the kit reads.
    log_file : Path
    """

    url: str
    version: str
    home_ranks: bool
    admin_key: str
    fault_file: Path
    log_file: Path
    client: httpx.Client = field(repr=False)

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self.client.get(path, params=parameters)

    def put(self, path: str, body: object) -> httpx.Response:
        return self.client.put(path, json=body)

    def post(self, path: str, body: object | None = None) -> httpx.Response:
        return self.client.post(path, json=body)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Break the weight mover while the block runs."""
        self.fault_file.write_text(name)
        try:
            yield
        finally:
            self.fault_file.unlink()

    def loads_LG(self, *, layers: int) -> npt.NDArray[np.int64]:
        """Return the pairs of token and expert that every rank's experts computed so far, int64 [L, G]."""
        files = sorted(self.log_file.parent.glob("loads-*"))
        return np.stack([np.fromfile(file, dtype=np.int64)[:layers] for file in files], axis=1)

    def flush_cache(self) -> None:
        """Forget cached prefixes, so that every prompt is computed anew."""
        for _ in range(50):
            if self.client.post("/flush_cache").status_code == 200:
                return
            time.sleep(0.1)
        raise TimeoutError("the engine did not become idle")


@contextmanager
def engine_server(
    environment: Path, model: Path, folder: Path, *, setup: EngineSetup = PLAIN
) -> Iterator[EngineServer]:
    """Run an engine for a block.

    Parameters
    ----------
    environment
        Virtual environment made by ``kit/setup.sh``.
    model
        Checkpoint.
    folder
        For its log and the fault file.
    setup
        How it is started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    version = _version(environment)
    port = _free_port()
    fault_file, log_file = folder / "fault", folder / "engine.log"
    with log_file.open("w") as log:
        process = subprocess.Popen(
            [
                str(environment / "bin" / "python"),
                "-m",
                "sglang.launch_server",
                *_arguments(model, port),
                *setup.all_arguments,
            ],
            cwd=folder,
            env={**os.environ, **_variables(folder, fault_file, setup), **setup.variables},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300.0, headers=setup.headers) as client:
            _wait_until_up(client, process, log_file)
            yield EngineServer(
                url=f"http://127.0.0.1:{port}",
                version=version,
                home_ranks="all_to_all" in setup.plugins,
                admin_key=setup.admin_key,
                fault_file=fault_file,
                log_file=log_file,
                client=client,
            )
    finally:
        _stop(process)


def _arguments(model: Path, port: int) -> list[str]:
    pairs = {
        "--model-path": str(model),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--device": "cpu",
        "--dtype": "float32",
        "--tp": "2",
        "--ep-size": "2",
        "--ep-num-redundant-experts": str(REDUNDANT),
        "--sampling-backend": "pytorch",
        "--grammar-backend": "none",
        "--mem-fraction-static": "0.3",
        "--max-total-tokens": "4096",
        "--max-running-requests": "8",
    }
    flags = ["--enable-return-routed-experts", "--sleep-on-idle"]
    return [*(word for pair in pairs.items() for word in pair), *flags]


def _variables(folder: Path, fault_file: Path, setup: EngineSetup) -> dict[str, str]:
    first = (setup.moeplan_from,) if setup.moeplan_from else ()
    return {
        "PYTHONPATH": os.pathsep.join([*first, *(str(KIT / plugin) for plugin in setup.plugins)]),
        "PYTHONUNBUFFERED": "1",
        "MOEPLAN_TEST_FAULT_FILE": str(fault_file),
        "MOEPLAN_TEST_LOADS_FOLDER": str(folder),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(folder / "dumps"),
        "SGLANG_EXPERT_LOCATION_UPDATER_CANARY": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _version(environment: Path) -> str:
    command = "from importlib.metadata import version; print(version('sglang'))"
    return subprocess.check_output([str(environment / "bin" / "python"), "-c", command], text=True).strip()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_up(client: httpx.Client, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"SGLang ended with {process.returncode}:\n{_tail(log_file)}")
        try:
            if client.get("/health_generate", timeout=30.0).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"SGLang was not up after {START_LIMIT_S:g} s:\n{_tail(log_file)}")


def _tail(log_file: Path, *, lines: int = 40) -> str:
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-lines:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine and whatever it started: they share a process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30.0)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_server_info(server: EngineServer) -> dict[str, Any]:
    """Return the engine's own view of its arguments."""
    return dict(json.loads(server.get("/server_info").content))
