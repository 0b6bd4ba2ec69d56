"""What happens around the service: a database that goes and comes, and a disk that is full or read-only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
from sqlalchemy import select

from api.rebalancing.gates import Mode
from api.service.context import Service
from api.store.migrate import upgrade
from api.store.models import Cycle, Decision, Job, Rollout
from profiler.engine.client import EngineClient
from tests.api.cli.test_service_commands import serving
from tests.api.schedules import OPEN, register, scheduled
from tests.api.services import WorkerProcess, service_on, wait_for
from tests.bench.support.many_engines import HostedEngine, many_engines
from tests.bench.support.service_witness import pushes_done, pushes_told
from tests.databases import open_database
from tests.postgres import MISSING, own_postgres, server_programs
from tests.small_disk import MISSING as NO_MOUNT
from tests.small_disk import can_mount, small_disk

AWAY_S, BETWEEN_S = 8.0, 15.0
TICK_S = 10.0
COUNTS = b'{"logical_count": [[[1, 2], [3, 4]]]}'


@dataclass(frozen=True)
class Condition:
    """One row.

    Attributes
    ----------
    name, done, outcome : str
    right : bool
    """

    name: str
    done: str
    outcome: str
    right: bool


def outages(folder: Path, *, times: int) -> Iterator[Condition]:
    """End PostgreSQL again and again under schedules that push, then cut every connection; count what came of it."""
    programs = server_programs()
    if programs is None:
        yield Condition("database gone and back", MISSING, "", False)
        return
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        server = stack.enter_context(own_postgres(programs))
        with psycopg.connect(server.url % "postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE moeplan")
        url = server.url % "moeplan"
        with closing(open_database(url)) as database:
            upgrade(database)
        hosted = stack.enter_context(many_engines(3))
        service = stack.enter_context(service_on(url, folder / "data"))
        for number in range(2):
            stack.enter_context(WorkerProcess(service.settings, f"w{number}", gone_after_s=20.0))
        variables = {"MOEPLAN_DATABASE_URL": url, "MOEPLAN_WORKERS": "0", "MOEPLAN_LOG_LEVEL": "error"}
        _, api, _ = stack.enter_context(serving(folder, **variables))
        client = stack.enter_context(httpx.Client(base_url=api, timeout=60.0))
        rollout = {"measure_seconds": 0.5, "layers_per_chunk": 1, "pause_s": 0.2, "roll_back_margin": 10.0}
        ids = [
            scheduled(
                service, register(service, each.url, name=each.url), mode=Mode.APPLY, gates=OPEN, rollout=rollout,
                times={"interval_s": TICK_S},
            )
            for each in hosted
        ]  # fmt: skip
        said, back_s = Counter[str](), []
        for _ in range(times):
            time.sleep(BETWEEN_S)
            server.stop()
            for path in ("/healthz", "/readyz", "/v1/engines"):
                answered = client.get(path)
                code = answered.json().get("code", "ok")
                said[f"{path} {answered.status_code} {code} {answered.headers.get('retry-after', '-')}"] += 1
            time.sleep(AWAY_S)
            server.start()
            began_s = time.monotonic()
            wait_for(lambda: client.get("/readyz").status_code == 200, limit_s=60.0)
            back_s.append(time.monotonic() - began_s)
        told = "; ".join(sorted(said))
        yield Condition(
            "database gone: the API", f"ended {times} times for {AWAY_S:g} s",
            f"{told}; ready {max(back_s):.1f} s after",
            said["/healthz 200 ok -"] == times and said["/readyz 503 DATABASE_UNREACHABLE 5"] == times,
        )  # fmt: skip
        yield _settled(
            "database gone: the workers", f"ended {times} times for {AWAY_S:g} s", service, hosted, ids, client
        )
        for schedule_id in ids:
            client.post(f"/v1/schedules/{schedule_id}/resume", json={"reason": "once more"})
        for _ in range(10 * times):
            time.sleep(2.0)
            with psycopg.connect(server.url % "postgres", autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'moeplan'")
        yield _settled("connections cut", f"all, {10 * times} times, every 2 s", service, hosted, ids, client)


def _settled(
    name: str, done: str, service: Service, hosted: list[HostedEngine], ids: list[str], client: httpx.Client
) -> Condition:
    """Let the last cycles end, and compare cycles, decisions and the engines' own records of pushes."""
    for schedule_id in ids:
        wait_for(lambda which=schedule_id: _paused(client, which), limit_s=60.0)  # type: ignore[misc]
    wait_for(lambda: not _open_jobs(service), limit_s=240.0, what="the last jobs")
    with service.database.reading() as session:
        cycles = session.scalars(select(Cycle.id)).all()
        decisions = session.scalars(select(Decision)).all()
        rollouts = session.scalars(select(Rollout).order_by(Rollout.id)).all()
    told, pushed = Counter(pushes_told(rollouts)), Counter[tuple[str, str]]()
    for engine in hosted:
        with EngineClient(engine.url) as asked:
            pushed += Counter(pushes_done(asked.replayed_pushes()))
    of_cycle = Counter(decision.cycle_id for decision in decisions)
    lost, twice = [each for each in cycles if of_cycle[each] == 0], [each for each in cycles if of_cycle[each] > 1]
    outcomes = ", ".join(f"{count} {code}" for code, count in Counter(each.code for each in decisions).most_common())
    doubled, missing = (pushed - told).total(), (told - pushed).total()
    return Condition(
        name, done,
        f"{len(cycles)} cycles, {len(lost)} lost, {len(twice)} decided twice; {pushed.total()} pushes, "
        f"{doubled} twice, {missing} missing; {outcomes}",
        not (lost or twice or doubled or missing),
    )  # fmt: skip


def _paused(client: httpx.Client, schedule_id: str) -> bool:
    return client.post(f"/v1/schedules/{schedule_id}/pause", json={"reason": "looking"}).status_code in (200, 409)


def _open_jobs(service: Service) -> list[str]:
    with service.database.reading() as session:
        return list(session.scalars(select(Job.id).where(Job.ended_at.is_(None))))


def disk_filled(folder: Path) -> Iterator[Condition]:
    """Fill the data folder's disk, make it read-only, and let there be room again, under a service and its worker."""
    if not can_mount(folder / "tried"):
        yield Condition("full disk", NO_MOUNT, "", False)
        return
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "small"))
        data = disk.folder / "data"
        data.mkdir()
        url = f"sqlite:///{folder}/moeplan.db"
        (hosted,) = stack.enter_context(many_engines(1))
        service = stack.enter_context(service_on(url, data))
        stack.enter_context(WorkerProcess(service.settings, "w1", gone_after_s=60.0, log_folder=folder))
        variables = {"MOEPLAN_DATABASE_URL": url, "MOEPLAN_WORKERS": "0", "MOEPLAN_DATA_DIR": str(data)}
        _, api, _ = stack.enter_context(serving(folder, **variables))
        client = stack.enter_context(httpx.Client(base_url=api, timeout=120.0))
        schedule_id = scheduled(service, register(service, hosted.url))
        for name, begin, end in (
            ("full disk", disk.fill, disk.make_room),
            ("read-only data folder", lambda: disk.read_only(on=True), lambda: disk.read_only(on=False)),
        ):
            before = _files(data)
            begin()
            while_full = (_upload(client, name), _cycle(client, schedule_id))
            left = sorted(_files(data) - before)
            end()
            after = (_upload(client, name), _cycle(client, schedule_id))
            right = while_full == ("507 OUTPUT_NOT_WRITABLE", "OUTPUT_NOT_WRITABLE") and not left
            right &= after == ("202 waiting", "PLAN_PROPOSED")
            yield Condition(
                name, "an upload and a cycle, then both again with room",
                f"upload {while_full[0]}, cycle {while_full[1]}, {len(left)} files left behind; then {after[0]}, "
                f"{after[1]}",
                right,
            )  # fmt: skip


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"}


def _upload(client: httpx.Client, name: str) -> str:
    answered = client.post("/v1/traces", files={"files": ("counts.json", COUNTS + b" " * (10_000 + len(name)))})
    return f"{answered.status_code} {answered.json().get('code') or answered.json()['state']}"


def _cycle(client: httpx.Client, schedule_id: str) -> str:
    job = client.post(f"/v1/schedules/{schedule_id}/run").headers["location"]
    wait_for(lambda: client.get(job).json()["state"] in ("succeeded", "failed"), limit_s=120.0, what=job)
    newest = client.get("/v1/decisions", params={"limit": 1}).json()["items"][0]
    return str(newest["code"])
