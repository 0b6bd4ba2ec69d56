"""An installation that is scaled out: PostgreSQL, two API replicas, workers, a Ray cluster, and engines to plan for."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import httpx
import psycopg

from tests.bench.service_ticks import migrate
from tests.bench.support.process_trees import CpuMeter, end, machine_busy_s, started, wait_for_text
from tests.bench.support.replay_fleet import recording_of
from tests.postgres import running_postgres

REPLICAS = 2
RAY_NODES = 2
RAY_IS_UP = "Ray runtime started"
COMMAND = [sys.executable, "-c", "from api.cli import main; main()"]
ROOT = Path(__file__).parents[3]
ENDED = ("succeeded", "failed", "cancelled")
LONGEST_S = 1800.0
POLL_S = 0.5

SearchOn = Literal["own process", "ray"]


@dataclass(frozen=True)
class Planned:
    """What became of all plans that were asked for at once.

    Attributes
    ----------
    seconds
        From the first request to the end of the last job.
    jobs, plans
        As the service shows them, engine by engine.
    lost
        Plans of which the workers of the search lost a part, so that it was done again.
    cpu_s
        CPU seconds by kind of process.
    machine_s
        CPU seconds that the machine spent on anything, this included.
    """

    seconds: float
    jobs: Sequence[Mapping[str, Any]]
    plans: Sequence[Mapping[str, Any]]
    lost: int
    cpu_s: Mapping[str, float]
    machine_s: float

    @property
    def layouts(self) -> tuple[str, ...]:
        return tuple(plan["layout_hash"] for plan in self.plans)

    @property
    def job_s(self) -> list[float]:
        return [_seconds(job["started_at"], job["ended_at"]) for job in self.jobs]

    @property
    def waited_s(self) -> list[float]:
        return [_seconds(job["created_at"], job["started_at"]) for job in self.jobs]

    @property
    def solve_s(self) -> list[float]:
        return [plan["solve_seconds"] for plan in self.plans]

    @property
    def resumed(self) -> int:
        return sum(job["attempts"] > 1 for job in self.jobs)


@dataclass
class Installation:
    """A running service without workers, and engines whose recordings it has.

    Attributes
    ----------
    folder : Path
    environment : dict
        Of every process of it.
    replicas : list of str
        URLs; requests go to them by turns.
    engines, traces : list of str
        Identifiers.
    processes : dict
        Process ids by kind.
    """

    folder: Path
    environment: dict[str, str]
    replicas: list[httpx.Client] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    processes: dict[str, list[int]] = field(default_factory=dict)
    _turn: int = 0
    _crews: int = 0

    def ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Send a request to the replica whose turn it is. Raises RuntimeError with its answer where it is refused."""
        self._turn += 1
        answered = self.replicas[self._turn % len(self.replicas)].request(method, path, **content)
        if answered.is_error:
            raise RuntimeError(f"{method} {path} is answered {answered.status_code}: {answered.text[:500]}")
        return answered

    @contextmanager
    def workers(self, count: int, *, search_on: SearchOn) -> Iterator[list[subprocess.Popen[str]]]:
        """Keep so many workers running, each for one job at a time."""
        plan_workers = "ray" if search_on == "ray" else "1"
        environment = {**self.environment, "MOEPLAN_JOBS_PER_WORKER": "1", "MOEPLAN_PLAN_WORKERS": plan_workers}
        self._crews += 1
        names = [f"crew-{self._crews}-worker-{number}" for number in range(count)]
        with ExitStack() as stack:
            found = []
            for name in names:
                command = [*COMMAND, "worker", "--name", name]
                worker = started(command, log=self.folder / f"{name}.log", environment=environment)
                found.append(stack.enter_context(worker)[0])
            self.processes["workers"] = [process.pid for process in found]
            for name in names:
                wait_for_text(self.folder / f"{name}.log", "worker is ready")
            yield found
        self.processes.pop("workers", None)

    def plan_all(self, options: Mapping[str, Any], *, kill: subprocess.Popen[str] | None = None) -> Planned:
        """Ask for a plan of every engine at once and follow them to their ends; a worker may be killed on the way."""
        meter, machine_before_s, began_s = CpuMeter(self.processes), machine_busy_s(), time.monotonic()
        made = [
            self.ask("POST", "/v1/plans", json={"trace_ids": [trace], "engine_id": engine, **options}).json()
            for engine, trace in zip(self.engines, self.traces, strict=True)
        ]
        jobs = self._followed([plan["job_id"] for plan in made], kill=kill, meter=meter)
        seconds = time.monotonic() - began_s
        cpu_s, machine_s = meter.spent_s(), machine_busy_s() - machine_before_s
        return Planned(
            seconds=seconds,
            jobs=jobs,
            plans=[self.ask("GET", f"/v1/plans/{plan['id']}").json() for plan in made],
            lost=sum("WORKER_LOST" in self.ask("GET", f"/v1/plans/{plan['id']}/file").text for plan in made),
            cpu_s=cpu_s,
            machine_s=machine_s,
        )

    def follow(self, job_ids: Sequence[str]) -> None:
        """Wait for jobs to succeed."""
        self._followed(job_ids, kill=None, meter=CpuMeter({}))

    def _followed(
        self, job_ids: Sequence[str], *, kill: subprocess.Popen[str] | None, meter: CpuMeter
    ) -> list[Mapping[str, Any]]:
        until_s, left, ended = time.monotonic() + LONGEST_S, list(job_ids), {}
        while left:
            if time.monotonic() > until_s:
                raise RuntimeError(f"{len(left)} jobs have not ended after {LONGEST_S:g} s")
            for job_id in list(left):
                job = self.ask("GET", f"/v1/jobs/{job_id}").json()
                if job["state"] in ENDED:
                    left.remove(job_id)
                    ended[job_id] = job
                elif kill is not None and "batches of layers" in job["step"]:
                    kill.send_signal(signal.SIGKILL)  # whichever job it has is in its search or about to be
                    kill.wait()
                    kill = None
            meter.look()
            time.sleep(POLL_S)
        failed = [job for job in ended.values() if job["state"] != "succeeded"]
        if failed:
            raise RuntimeError(f"{len(failed)} jobs did not succeed; the first: {failed[0]['error']}")
        return [ended[job_id] for job_id in job_ids]


@contextmanager
def installed(folder: Path, programs: Path, *, engines: int, nodes: int, seed: int) -> Iterator[Installation]:
    """Run PostgreSQL, two API replicas and engines while the block runs, with a recording of every engine."""
    with ExitStack() as stack:
        server = stack.enter_context(running_postgres(programs))
        with psycopg.connect(server % "postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE bench")
            (postmaster,) = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchall()
        migrate(server % "bench")
        environment = {
            **os.environ,
            "MOEPLAN_DATABASE_URL": server % "bench",
            "MOEPLAN_DATA_DIR": str(folder / "data"),
            "MOEPLAN_LOG_LEVEL": "info",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        made = Installation(folder, environment)
        made.processes["database"] = [int(postmaster[0].split()[0])]
        fleet = stack.enter_context(_fleet(engines, nodes, folder, environment))
        made.processes["engines"] = [fleet.process.pid]
        made.processes["api"] = []
        for number in range(REPLICAS):
            command = [*COMMAND, "serve", "--port", "0", "--workers", "0"]
            replica = started(
                command, log=folder / f"replica {number}.log", environment=environment, announces="moeplan serves on "
            )
            process, line = stack.enter_context(replica)
            made.processes["api"].append(process.pid)
            url = line.split()[3].rstrip(";")
            made.replicas.append(stack.enter_context(httpx.Client(base_url=url, timeout=120.0)))
        _fill(made, fleet.urls, seed=seed)
        yield made


@dataclass(frozen=True)
class Fleet:
    process: subprocess.Popen[str]
    urls: Sequence[str]


@contextmanager
def _fleet(engines: int, nodes: int, folder: Path, environment: Mapping[str, str]) -> Iterator[Fleet]:
    command = [sys.executable, "-m", "tests.bench.support.replay_fleet", str(engines), str(nodes)]
    with (folder / "engines.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(environment)
        )
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        yield Fleet(process, json.loads(line))
    finally:
        end(process)


def _fill(made: Installation, urls: Sequence[str], *, seed: int) -> None:
    """Register the engines and upload a recording for each; workers read the recordings and end."""
    jobs = []
    for number, url in enumerate(urls):
        engine = made.ask("POST", "/v1/engines", json={"name": f"engine {number}", "url": url}).json()
        if engine["state"] != "ready":
            raise RuntimeError(f"the engine {url} is {engine['state']}: {engine['error']}")
        with recording_of(made.folder, number, seed=seed).open("rb") as file:
            answered = made.ask(
                "POST", "/v1/traces", files={"files": (f"engine-{number}.npz", file)}, data={"engine_id": engine["id"]}
            )
        made.engines.append(engine["id"])
        made.traces.append(answered.json()["id"])
        jobs.append(answered.headers["location"].rsplit("/", 1)[-1])
    with made.workers(2, search_on="own process"):
        made.follow(jobs)


@contextmanager
def ray_cluster(made: Installation) -> Iterator[None]:
    """Run a Ray cluster of two nodes with one CPU each on the loopback, and have workers find it."""
    address = f"127.0.0.1:{_free_port()}"
    # Nodes and whoever sends work must know one token; Ray would take that of this user where there is one.
    found = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**made.environment, **found, "RAY_USAGE_STATS_ENABLED": "0"}
    usual = ["--num-cpus", "1", "--node-ip-address", "127.0.0.1", "--disable-usage-stats", "--block"]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    head = [*ray, "--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false", *usual]
    with ExitStack() as stack:
        nodes = [stack.enter_context(started(head, log=made.folder / "ray 0.log", environment=environment))[0]]
        wait_for_text(made.folder / "ray 0.log", RAY_IS_UP)
        for number in range(1, RAY_NODES):
            log = made.folder / f"ray {number}.log"
            node = started([*ray, "--address", address, *usual], log=log, environment=environment)
            nodes.append(stack.enter_context(node)[0])
            wait_for_text(log, RAY_IS_UP)
        made.environment |= found
        made.processes["ray"] = [node.pid for node in nodes]
        yield
        made.processes.pop("ray")
        for name in found:
            made.environment.pop(name)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()
