"""What slots buy and cost: plans for several numbers of them, the proven bound, and what they leave of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from api.errors import BadRequest, WrongState
from api.service import jobs
from api.service import plans as plan_service
from api.service.context import Service
from api.service.frames import demand_of, require_same_model
from api.states import JobKind, JobState
from api.store import jobs as job_rows
from api.store import plans
from api.store.audit import Actor
from api.store.database import Session
from api.store.models import Job, Plan, Trace
from placement.bounds import local_gpu_bound
from placement.dispatch import Dispatch
from placement.errors import BadModelConfig
from placement.plan import Plan as MadePlan
from placement.sizing import EngineMemory, ModelWeights
from placement.slots import smallest_slots_per_gpu
from profiler.model_file import model_names, read_model_config

MOST_ROWS = 24


@dataclass(frozen=True, kw_only=True)
class SizesAsked:
    """What is asked of sizes.

    Attributes
    ----------
    model : str or None
        Name of a model that comes with moeplan. No path: callers of the service may not read its files.
    gpu_memory_gib : float or None
    """

    model: str | None = None
    gpu_memory_gib: float | None = None

    def __post_init__(self) -> None:
        if (self.model is None) != (self.gpu_memory_gib is None):
            raise BadRequest("model and gpu_memory_gib belong together: give both, or neither for locality alone.")
        if self.model is not None and self.model not in model_names():
            raise BadRequest(
                f"the model {self.model[:60]!r} is not known by name; there are {', '.join(model_names())}."
            )


def begin_planning(service: Service, session: Session, actor: Actor, plan: Plan) -> Job:
    """Queue the job that plans for other numbers of slots than a plan has.

    Raises
    ------
    WrongState
        The plan was not made yet, it has no recording here, or this is being done already.
    """
    if plan.sha256 is None:
        raise WrongState(
            f"the plan {plan.id} is {plan.state}: {plan.state.sentence} Its slots are weighed once it is made."
        )
    if not plans.trace_ids(session, plan.id):
        raise WrongState(f"the plan {plan.id} has no recording to weigh slots with.")
    going_on = job_rows.newest_for(session, plan.id, JobKind.SIZE)
    if going_on is not None and not going_on.state.ended:
        raise WrongState(f"the job {going_on.id} is weighing the slots of this plan already.")
    return jobs.begin(service, session, actor, kind=JobKind.SIZE, subject_id=plan.id, engine_id=None)


def planned_sizes(session: Session, plan_id: str) -> Job | None:
    """Return the newest job that planned for other numbers of slots, if there is one."""
    return job_rows.newest_for(session, plan_id, JobKind.SIZE, state=JobState.SUCCEEDED)


def slot_sizes(service: Service, plan: Plan, trace: Trace, planned: Job | None, asked: SizesAsked) -> dict[str, Any]:
    """Return rows of slots with what they are worth, and with a model what they cost, on the machine of a plan.

    Parameters
    ----------
    trace
        The plan's first recording; bounds are proven on it where nothing was planned.
    planned
        The job whose plans are shown.

    Raises
    ------
    WrongState, BadRequest, BadModelConfig, BadOption
    """
    made = plan_service.made(service, plan)
    memory = None if asked.model is None or asked.gpu_memory_gib is None else _Memory.of(made, asked)
    if planned is not None and planned.result is not None:
        rows = list(planned.result["rows"])
    else:
        rows = _bounds(service, made, trace, memory)
    return {
        "model": asked.model,
        "gpu_memory_gib": asked.gpu_memory_gib,
        "sources": made.metrics.sources,
        "planned_by": None if planned is None else planned.id,
        "plan": {
            "slots_per_gpu": made.slots_per_gpu,
            "local_gpu": made.metrics.local_gpu,
            "imbalance": made.metrics.worst_window.imbalance,
        },
        "rows": rows if memory is None else [{**row, **memory.costs(row["slots_per_gpu"])} for row in rows],
    }


def _bounds(service: Service, made: MadePlan, trace: Trace, memory: _Memory | None) -> list[dict[str, Any]]:
    """Return what is proven of numbers of slots, where nothing was planned for them yet."""
    demand = demand_of(service, trace, gpus=made.topology.gpus, phase=None).require_not_empty()
    require_same_model(made, demand)
    fewest = smallest_slots_per_gpu(experts=demand.experts, gpus=made.topology.gpus)
    fits = demand.experts if memory is None else memory.most_slots
    most = max(fewest, fits, made.slots_per_gpu)
    spread = np.unique(np.linspace(fewest, most, num=min(MOST_ROWS, most - fewest + 1)).round().astype(int)).tolist()
    even = made.options.dispatch is Dispatch.EVEN
    return [
        {
            "slots_per_gpu": slots,
            "local_gpu": None,
            "local_gpu_bound": None if even else local_gpu_bound(demand, made.topology, slots).share,
            "imbalance": None,
        }
        for slots in sorted({*spread, made.slots_per_gpu})
    ]


@dataclass(frozen=True)
class _Memory:
    """A GPU's memory under a model."""

    weights: ModelWeights
    engine: EngineMemory
    most_slots: int

    @classmethod
    def of(cls, made: MadePlan, asked: SizesAsked) -> _Memory:
        weights = ModelWeights.from_config(read_model_config(str(asked.model)))
        if weights.shape.experts != made.model.experts:
            raise BadModelConfig(
                f"{asked.model} has {weights.shape.experts} experts, the plan {made.model.experts}: is it the plan's "
                "model?"
            )
        gpus, all_to_all = made.topology.gpus, made.options.dispatch is not Dispatch.EVEN
        engine = EngineMemory(
            gpus=gpus,
            gpu_memory_gib=float(asked.gpu_memory_gib or 0.0),
            attention_ranks=gpus if all_to_all else 1,
            all_to_all=all_to_all,
        )
        return cls(weights, engine, min(made.model.experts, engine.most_slots(weights, cache_tokens=1)))

    def costs(self, slots_per_gpu: int) -> dict[str, Any]:
        """Return the bytes of experts, and the tokens of cache that are left."""
        use = self.engine.use(self.weights, slots_per_gpu=slots_per_gpu)
        return {
            "expert_bytes": use.expert_bytes,
            "cache_tokens": use.all_cache_tokens,
            "fits": slots_per_gpu <= self.most_slots,
        }
