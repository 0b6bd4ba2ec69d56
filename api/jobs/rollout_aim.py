"""What a rollout is to bring where, and what is kept of it: read from the database and the stored files."""

from __future__ import annotations

import json
from dataclasses import dataclass

from api.jobs.running import JobRun
from api.service.context import Service
from api.store import plans
from api.store.models import Engine, Rollout
from placement.layout import Layout
from placement.plan import Plan
from profiler.engine.contract import Placement
from profiler.plan_file import plan_from_document


@dataclass(frozen=True)
class Aim:
    """What is to be brought where, and the job that does it.

    Attributes
    ----------
    layout : Layout
        The layout to bring in.
    progress : (float, float)
        Part of the job's progress that the rollout is.
    """

    run: JobRun
    rollout: Rollout
    engine: Engine
    layout: Layout
    progress: tuple[float, float]

    @property
    def rollout_id(self) -> str:
        return self.rollout.id

    @property
    def service(self) -> Service:
        return self.run.service

    def report(self, share: float, step: str) -> None:
        """Say how far the rollout is, 0 to 1."""
        begin, end = self.progress
        self.run.report(begin + (end - begin) * share, step)


def target_layout(service: Service, rollout: Rollout) -> Layout:
    """Return the layout to bring in: a plan's, or the one that an earlier rollout replaced."""
    if rollout.takes_back_id is None:
        return planned(service, str(rollout.plan_id)).layout
    with service.database.reading() as session:
        earlier = plans.find_rollout(session, rollout.takes_back_id)
    return layout_of(stored_placement(service, str(earlier.from_sha256)))


def planned(service: Service, plan_id: str) -> Plan:
    """Return a plan as it was stored, checked."""
    with service.database.reading() as session:
        plan = plans.find(session, plan_id)
    return plan_from_document(json.loads(service.files.read(str(plan.sha256))), name=f"plan {plan.id}")


def stored_placement(service: Service, sha256: str) -> Placement:
    """Return an engine as it was kept before a push."""
    return Placement.from_json(json.loads(service.files.read(sha256)))


def layout_of(placement: Placement) -> Layout:
    return Layout(placement.map_LP, gpus=placement.ep_size, experts=placement.experts)
