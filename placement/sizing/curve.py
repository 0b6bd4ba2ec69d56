"""What slots buy in locality and balance, and cost in key-value cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from placement import solver
from placement.bounds import fewest_slots_for_local_gpu, local_gpu_bound
from placement.dispatch import Dispatch
from placement.errors import BadModelConfig, BadOption
from placement.layout import Layout
from placement.metrics import Metrics, TokenMetrics
from placement.problem import Problem
from placement.score import score, score_tokens, traced_moe_layer_time
from placement.sizing.engine_memory import EngineMemory, MemoryUse
from placement.sizing.model_weights import ModelWeights
from placement.sizing.remedies import not_enough_memory
from placement.slots import smallest_slots_per_gpu
from placement.step_time import MoeLayerTime, Step
from placement.tokens import TokenStream


@dataclass(frozen=True)
class SizeRow:
    """One number of slots.

    Attributes
    ----------
    memory : MemoryUse
    fits : bool
        Whether the cache is as large as asked.
    local_gpu, local_node, imbalance : float or None
        Of a plan made for these slots, judged by the ruler; None where nothing was planned (it does not fit) or
        nothing is local.
    local_gpu_bound : float or None
        No layout passes this (proven).
    gpus_per_token, active_experts : float or None
        Of the same plan, where there is a token trace.
    moe_layer : MoeLayerTime or None
        Of the same plan, where hardware was given.
    """

    memory: MemoryUse
    fits: bool
    local_gpu: float | None = None
    local_node: float | None = None
    imbalance: float | None = None
    local_gpu_bound: float | None = None
    gpus_per_token: float | None = None
    active_experts: float | None = None
    moe_layer: MoeLayerTime | None = None


@dataclass(frozen=True)
class SizeCurve:
    """The rows, and where the target is.

    Attributes
    ----------
    rows : tuple of SizeRow
        By slots, ascending; the last ones may not fit.
    local_target : float
    slots_for_target : int or None
        Fewest slots per GPU for which no bound rules the target out (proven: fewer miss it); None under ``even``
        dispatch, where nothing is local.
    target_row : SizeRow or None
        The row with the fewest slots whose plan reaches the target and fits.
    most_slots : int
        Most slots per GPU that leave the cache asked for.
    cache_tokens_asked : int
    memory_fraction : float
    token_bytes : float
        Of one token in the cache of one GPU.
    parameters : int
        Of the model, draft layers excluded.
    """

    rows: tuple[SizeRow, ...]
    local_target: float
    slots_for_target: int | None
    target_row: SizeRow | None
    most_slots: int
    cache_tokens_asked: int
    memory_fraction: float
    token_bytes: float
    parameters: int

    @property
    def best_local_row(self) -> SizeRow | None:
        """The row with the largest own-GPU share that fits."""
        local = [row for row in self.rows if row.fits and row.local_gpu is not None]
        return max(local, key=lambda row: (row.local_gpu or 0.0, -row.memory.slots_per_gpu)) if local else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class SizeQuestion:
    """What is to be sized.

    Attributes
    ----------
    problem : Problem
        Demand, machine, dispatch and caps; its slots are not used.
    model : ModelWeights
    engine : EngineMemory
    local_target : float
    cache_tokens : int
        Fewest tokens that one GPU's cache must hold.
    rows : int
        Most numbers of slots to plan for.
    seed : int
    threads : int
    stream : TokenStream or None
        Token trace of the demand.
    step : Step or None
        What to predict times for.
    """

    problem: Problem
    model: ModelWeights
    engine: EngineMemory
    local_target: float = 0.6
    cache_tokens: int = 1
    rows: int = 6
    seed: int = 0
    threads: int = 1
    stream: TokenStream | None = None
    step: Step | None = None

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cache_tokens < 1:
            raise BadOption(f"{self.rows} rows and {self.cache_tokens} cache tokens were asked for; both start at 1.")
        if not 0 < self.local_target <= 1:
            raise BadOption(f"the local target is {self.local_target}; it is a share above 0 and up to 1, like 0.6.")
        found, known = self.problem.demand.experts, self.model.shape.experts
        if found != known:
            raise BadModelConfig(f"the recording has {found} experts, the model {known}: is it the model's recording?")


def size_curve(question: SizeQuestion, *, progress: Callable[[float], None] | None = None) -> SizeCurve:
    """Plan for several numbers of slots and say what memory each leaves.

    Layouts come from the solver's local search (no exact search), so a row may be a little below what ``plan`` finds.

    Raises
    ------
    NotEnoughMemory
        Not even one slot per expert leaves the cache asked for; with what would.
    """
    problem, model, engine = question.problem, question.model, question.engine
    fewest = smallest_slots_per_gpu(experts=problem.demand.experts, gpus=problem.topology.gpus)
    most = min(problem.demand.experts, engine.most_slots(model, cache_tokens=question.cache_tokens))
    if most < fewest:
        raise not_enough_memory(model, engine, experts=problem.demand.experts, cache_tokens=question.cache_tokens)
    local = problem.dispatch is not Dispatch.EVEN
    needed = None
    if local:
        needed = fewest_slots_for_local_gpu(problem.demand, problem.topology, question.local_target)
    planned = _numbers_of_slots(fewest, most, rows=question.rows, needed=needed)
    rows = []
    for index, slots in enumerate(planned):
        rows.append(_row(question, slots))
        if progress is not None:
            progress((index + 1) / (len(planned) + 1))
    if needed is not None and needed <= most and not any(_reaches(row, question.local_target) for row in rows):
        slots, _ = solver.fit(
            problem,
            local_target=question.local_target,
            most_slots_per_gpu=most,
            seed=question.seed,
            threads=question.threads,
        )
        rows.append(_row(question, slots))
    if needed is not None and needed > most:
        rows.append(_row(question, needed, fits=False))
    rows = sorted({row.memory.slots_per_gpu: row for row in rows}.values(), key=lambda row: row.memory.slots_per_gpu)
    return SizeCurve(
        rows=tuple(rows),
        local_target=question.local_target,
        slots_for_target=needed,
        target_row=next((row for row in rows if _reaches(row, question.local_target)), None),
        most_slots=most,
        cache_tokens_asked=question.cache_tokens,
        memory_fraction=engine.fraction(model),
        token_bytes=engine.token_bytes(model),
        parameters=model.parameters,
    )


def _numbers_of_slots(fewest: int, most: int, *, rows: int, needed: int | None) -> list[int]:
    """Spread the rows evenly from the fewest to the most slots; where the target can be reached is one of them."""
    spread = np.unique(np.linspace(fewest, most, num=min(rows, most - fewest + 1)).round().astype(int)).tolist()
    inside = [needed] if needed is not None and fewest <= needed <= most else []
    return sorted({*spread, *inside})


def _reaches(row: SizeRow, target: float) -> bool:
    return row.fits and row.local_gpu is not None and row.local_gpu >= target


def _row(question: SizeQuestion, slots: int, *, fits: bool = True) -> SizeRow:
    memory = question.engine.use(question.model, slots_per_gpu=slots)
    problem = replace(question.problem, slots_per_gpu=slots)
    bound = None
    if problem.dispatch is not Dispatch.EVEN:
        bound = local_gpu_bound(problem.demand, problem.topology, slots).share
    if not fits:
        return SizeRow(memory, False, local_gpu_bound=bound)
    solution = solver.solve(problem, seed=question.seed, threads=question.threads, exact_seconds=0)
    metrics: Metrics = score(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch)
    counted = _counted(question, problem, solution.layout)
    time = None
    if question.step is not None:
        time = traced_moe_layer_time(
            solution.layout,
            problem.demand,
            problem.topology,
            dispatch=problem.dispatch,
            step=question.step,
            stream=question.stream,
        )
    return SizeRow(
        memory=memory,
        fits=True,
        local_gpu=metrics.local_gpu,
        local_node=metrics.local_node,
        imbalance=metrics.worst_window.imbalance,
        local_gpu_bound=bound,
        gpus_per_token=None if counted is None else counted.gpus_per_token,
        active_experts=None if counted is None else counted.active_experts,
        moe_layer=time,
    )


def _counted(question: SizeQuestion, problem: Problem, layout: Layout) -> TokenMetrics | None:
    if question.stream is None:
        return None
    by_name = score_tokens({"plan": layout}, question.stream, problem.topology, dispatch=problem.dispatch)
    return by_name.get("plan")
