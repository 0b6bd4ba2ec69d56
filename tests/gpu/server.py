"""Starts engines on the machine at hand, several at a time if asked, and always stops them."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.gpu.machine import Machine

START_LIMIT_S = {"cuda": 240.0, "cpu": 300.0}
LAST_LINES = 60
PORTS = range(20_000, 32_000, 300)
FIRST_DERIVED, DERIVED = 233, 8
"""SGLang's own sockets stand so far from the HTTP port (``ZMQ_TCP_PORT_DELTA`` of ``srt/server_args.py``)."""


class EngineNotUp(RuntimeError):
    """An engine ended, or did not serve in time."""


@dataclass(frozen=True)
class EngineSetup:
    """How one engine is started.

    Attributes
    ----------
    name : str
    model : Path
    redundant : int
        ``--ep-num-redundant-experts``.
    dp_attention, all_to_all : bool
        DP attention gives every GPU its own requests; with ``all_to_all`` tokens travel through the stand-in for
        DeepEP, else every GPU sees every token.
    arguments : tuple of str
        More server arguments; a later one overrides an earlier one.
    without : tuple of str
        Options that all engines get and this one does not.
    """

    name: str
    model: Path
    redundant: int
    dp_attention: bool = False
    all_to_all: bool = False
    arguments: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass
class Engine:
    """A running engine and its HTTP client. Every request is counted, and every one that fails.

    Attributes
    ----------
    url : str
    setup : EngineSetup
    sources : int
        GPUs that take requests of their own.
    log : Path
    pid : int
        Of the process that takes requests.
    requests, failed : int
        Generations asked for, and those that failed or came back short.
    start_s : float
    """

    url: str
    setup: EngineSetup
    sources: int
    log: Path
    client: httpx.Client = field(repr=False)
    pid: int = 0
    requests: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    start_s: float = 0.0

    def post(self, path: str, body: object) -> Any:
        response = self.client.post(path, json=body)
        response.raise_for_status()
        return response.json()


@dataclass
class _Launched:
    setup: EngineSetup
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float
    engine: Engine | None = None


class EnginePool:
    """Engines of one run; all of them are stopped at the end of the block, and their logs kept in ``out``.

    Starting an engine is mostly loading modules, so several may be launched before the first is waited for.
    """

    def __init__(self, machine: Machine, out: Path) -> None:
        self._machine, self._out = machine, out
        self._launched: dict[str, _Launched] = {}
        self._stack = ExitStack()

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()
        self.stop(*self._launched)

    def launch(self, setup: EngineSetup) -> None:
        """Start an engine without waiting for it."""
        self._launched[setup.name] = _launch(self._machine, setup)

    def get(self, setup: EngineSetup) -> Engine:
        """Return an engine that serves, launched now unless it was before; one that ends on the way is tried again.

        Raises
        ------
        EngineNotUp
            With the last lines of its log.
        """
        if setup.name not in self._launched:
            self.launch(setup)
            return self._when_up(self._launched[setup.name])
        try:
            return self._when_up(self._launched[setup.name])
        except EngineNotUp as first:  # launched beside others: it may have lacked memory or a port
            print(f"{first}\nonce more, alone", flush=True)
            self.stop(setup.name)
            self.launch(setup)
            return self._when_up(self._launched[setup.name])

    def holds(self, name: str) -> bool:
        """Whether an engine was launched and not stopped since."""
        return name in self._launched

    def stop(self, *names: str) -> None:
        """Stop engines; unknown names are those that never started."""
        _stop_all([self._launched.pop(name) for name in names if name in self._launched], self._out)

    def _when_up(self, one: _Launched) -> Engine:
        if one.engine is not None and one.process.poll() is None:
            return one.engine
        client = self._stack.enter_context(httpx.Client(base_url=one.url, timeout=httpx.Timeout(120.0, connect=10.0)))
        limit_s = START_LIMIT_S[self._machine.device]
        while time.monotonic() - one.started_s < limit_s:
            if one.process.poll() is not None:
                raise EngineNotUp(f"engine {one.setup.name} ended with {one.process.returncode}:\n{_tail(one.log)}")
            with suppress(httpx.TransportError):
                if client.get("/health_generate", timeout=30.0).status_code == 200:
                    sources = self._machine.gpus if one.setup.dp_attention else 1
                    took_s = time.monotonic() - one.started_s
                    one.engine = Engine(
                        url=one.url,
                        setup=one.setup,
                        sources=sources,
                        log=one.log,
                        client=client,
                        pid=one.process.pid,
                        start_s=took_s,
                    )
                    return one.engine
            time.sleep(0.5)
        raise EngineNotUp(f"engine {one.setup.name} was not up after {limit_s:g} s:\n{_tail(one.log)}")


def _launch(machine: Machine, setup: EngineSetup) -> _Launched:
    folder = machine.root / setup.name
    folder.mkdir(parents=True, exist_ok=True)
    port, log = _free_port(), folder / "engine.log"
    command = [machine.engine_python, "-m", "sglang.launch_server", *arguments(machine, setup, port=port)]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env=machine.engine_variables(folder, all_to_all=setup.all_to_all),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Launched(setup, f"http://127.0.0.1:{port}", process, log, time.monotonic())


def arguments(machine: Machine, setup: EngineSetup, *, port: int) -> list[str]:
    """Return the server's arguments."""
    ranks = str(machine.gpus)
    common = {
        "--model-path": str(setup.model),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--tp": ranks,
        "--ep-size": ranks,
        "--ep-num-redundant-experts": str(setup.redundant),
        "--ep-dispatch-algorithm": "dynamic",
        "--sampling-backend": "pytorch",
        "--grammar-backend": "none",
    }
    flags = ["--enable-return-routed-experts", "--disable-radix-cache", "--incremental-streaming-output"]
    if machine.device == "cuda":
        common |= {
            "--attention-backend": "triton",
            "--moe-runner-backend": "triton",
            "--cuda-graph-max-bs-decode": "64",
            "--mem-fraction-static": "0.45",
            "--max-running-requests": "256",
            "--max-total-tokens": "400000",
            "--watchdog-timeout": "120",
        }
        flags += [
            "--disable-custom-all-reduce",
            "--enforce-disable-flashinfer-allreduce-fusion",
            "--disable-prefill-cuda-graph",
        ]
    else:
        common |= {
            "--device": "cpu",
            "--dtype": "float32",
            "--mem-fraction-static": "0.3",
            "--max-total-tokens": "4096",
            "--max-running-requests": "16",
        }
        flags += ["--disable-overlap-schedule", "--sleep-on-idle"]
    if setup.dp_attention:
        flags += ["--enable-dp-attention", "--dp", ranks]
    if setup.all_to_all:
        flags += ["--moe-a2a-backend", "deepep", "--deepep-mode", "normal", "--deepep-dispatcher-output-dtype", "bf16"]
    given = (pair for pair in common.items() if pair[0] not in setup.without)
    return [*(word for pair in given for word in pair), *flags, *setup.arguments]


def _stop_all(launched: Sequence[_Launched], out: Path) -> None:
    """End all engines with everything they started (each has its own process group) and keep their logs."""
    for one in launched:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
    until_s = time.monotonic() + 8.0
    for one in launched:
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(timeout=max(0.1, until_s - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        with one.log.open("rb") as log, gzip.open(out / f"{one.setup.name}.log.gz", "wb") as packed:
            shutil.copyfileobj(log, packed)


def _tail(log: Path) -> str:
    return "\n".join(line[:400] for line in log.read_text(errors="replace").splitlines()[-LAST_LINES:])


def _free_port() -> int:
    """Return a port below those that systems deal out by themselves, free as are the ones SGLang derives from it."""
    for port in random.sample(PORTS, len(PORTS)):
        if all(map(_is_free, (port, *range(port + FIRST_DERIVED, port + FIRST_DERIVED + DERIVED)))):
            return port
    raise RuntimeError(f"no free ports from {PORTS.start} to {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
