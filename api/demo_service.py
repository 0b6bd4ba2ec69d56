"""The demo's second half: the same job done by the service, with something on every page of its dashboard."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.client.connection import ServiceConnection
from api.client.events import finished
from api.client.rollouts import push_there
from api.client.traces import capture, upload
from api.demo import GPUS, SLOTS_PER_GPU
from api.loading import read_options
from api.serving import serving
from api.settings import Settings, read_settings
from profiler.errors import AddressNotAvailable
from profiler.http_server import listening_on
from profiler.inputs import open_inputs
from profiler.recordings import MIXED, recording_path
from profiler.replay import running_replay

LOOPBACK = "127.0.0.1"
STEPS_PER_S = 20.0
"""Slow enough to be left running on a laptop."""

CAPTURE = {"steps": 80, "window_steps": 20}
SOLVE_S = 20.0
MEASURED_S = 3.0
EVERY_S = 600.0

SCHEDULE: Mapping[str, Any] = {
    "interval_s": EVERY_S,
    "mode": "propose",
    "capture": {"steps": 80, "window_steps": 20},
    "planning": {"time_limit_s": SOLVE_S},
    "gates": {"least_tokens": 1000, "cool_down_s": 0},
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoService:
    """The running service, and what was put into it.

    Attributes
    ----------
    url : str
    plan, rollout, decision : dict
        As ``/v1`` shows them.
    """

    url: str
    plan: dict[str, Any]
    rollout: dict[str, Any]
    decision: dict[str, Any]


@contextmanager
def demo_service(folder: Path, *, port: int, say: Say) -> Iterator[DemoService]:
    """Run the service on SQLite beside a replay engine, fill it, and keep both running while the block runs.

    Parameters
    ----------
    folder
        For database and files; what an earlier demo left there is removed.
    port
        Taken where it is free, else any other.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (reader,) = open_inputs([recording_path(MIXED)], read_options())
    engine = running_replay(
        reader, gpus=GPUS, slots_per_gpu=SLOTS_PER_GPU, homes="round-robin", steps_per_s=STEPS_PER_S
    )
    settings = _settings(folder.resolve(), port=port)
    key = settings.admin_api_key
    token = None if key is None else key.get_secret_value()
    with engine as engine_url, serving(settings) as url, ServiceConnection(url, token) as service:
        say(f"the service runs on {url} (SQLite, one worker), beside a replay engine on {engine_url}")
        yield _filled(service, engine_url, say=say)


def _settings(folder: Path, *, port: int) -> Settings:
    """Return settings that keep everything in the folder, whatever the variables of this shell say."""
    return read_settings(
        data_dir=folder,
        database_url=f"sqlite:///{folder}/moeplan.db",
        files_url=f"file://{folder}",
        host=LOOPBACK,
        port=_if_free(port),
        workers=1,
        log_level="error",
    )


def _if_free(port: int) -> int:
    try:
        with listening_on(LOOPBACK, port):
            return port
    except AddressNotAvailable:
        return 0


def _filled(service: ServiceConnection, engine_url: str, *, say: Say) -> DemoService:
    body = {"name": "replay", "url": engine_url, "labels": {"cluster": "demo"}}
    engine = service.post("/v1/engines", body, once=secrets.token_hex(16)).json
    upload(service, [recording_path(MIXED)], read={})
    trace = capture(service, engine_id=engine["id"], limits=CAPTURE)
    say(f"recorded {trace['id']} from the engine, by home GPU")

    asked = {"trace_ids": [trace["id"]], "engine_id": engine["id"], "time_limit_s": SOLVE_S}
    plan = service.post("/v1/plans", asked, once=secrets.token_hex(16)).json
    finished(service, plan["job_id"])
    plan = service.post(f"/v1/plans/{plan['id']}/approve", {"reason": "the demo"}).json
    say(f"planned and approved {plan['id']}: {plan['local_gpu']:.1%} on the home GPU, {plan['moved_slots']} moves")

    rollout = push_there(service, {"plan_id": plan["id"], "measure_seconds": MEASURED_S, "reason": "the demo"})
    say(f"rollout {rollout['id']} is {rollout['state']}: {(rollout['result'] or rollout)['sentence']}")

    schedule = {**SCHEDULE, "engine_id": engine["id"], "name": "every ten minutes"}
    made = service.post("/v1/schedules", schedule, once=secrets.token_hex(16)).json
    path = f"/v1/schedules/{made['id']}/run"
    finished(service, service.post(path, {"reason": "the demo"}, once=secrets.token_hex(16)).json["id"])
    (decision,) = service.pages("/v1/decisions", {"schedule_id": made["id"]}, most=1)
    say(f"a cycle of the schedule {made['name']!r} ended: {decision['sentence']}")
    return DemoService(service.url, plan, rollout, decision)


def wait_for_ctrl_c() -> None:
    """Wait until the user ends it."""
    while True:
        time.sleep(3600)
