"""The replay engine itself: one thread's state, without sockets or clock.

Every method is called between steps, by one thread at a time (:class:`profiler.replay.loop.StepLoop`), as SGLang
handles control requests between batches.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.contract import REPLAY_ENGINE, Placement, PluginHealth
from profiler.engine.contract_demand import DemandAnswer, DemandOptions, DemandState
from profiler.engine.contract_measured import Measured
from profiler.engine.contract_push import PushRequest
from profiler.engine.json_fields import ContractViolation
from profiler.engine.map_rules import layout_hash
from profiler.replay.batching import ContinuousBatching, Run
from profiler.replay.demand import DemandRecorder
from profiler.replay.dispatch import Dispatcher, Ranks, dispatcher_class
from profiler.replay.measured import DispatchCounters
from profiler.replay.options import REPLAYED_VERSION, ReplayOptions
from profiler.replay.push_log import PushLog
from profiler.replay.pushing import ChunkFailed, PushPlan, Restarted, plan_push
from profiler.replay.recorder import StatRecorder
from profiler.replay.requests import GenerateRequest, answer_to, run_for
from profiler.replay.start import WITHOUT_DISPATCH, first_map, plugin_health, server_arguments
from profiler.replay.step import RoutedStep
from profiler.replay.traffic import Traffic, assign_homes
from profiler.replay.weights import SlotWeights
from profiler.trace import NO_EXPERT


class ReplayEngine:
    """Serves a recorded trace step by step under a layout that can be replaced.

    Parameters
    ----------
    traffic : Traffic
    options : ReplayOptions
    """

    def __init__(self, traffic: Traffic, options: ReplayOptions) -> None:
        options.check_against(layers=traffic.layers, experts=traffic.experts)
        self.options = options
        self._traffic = traffic
        self.homes, home_Q = assign_homes(traffic, gpus=options.gpus, homes=options.homes)
        self._batching = ContinuousBatching(
            traffic,
            home_Q,
            gpus=options.gpus,
            prefill_tokens=options.prefill_tokens,
            running_per_gpu=options.running_per_gpu,
            passes=options.passes,
        )
        self._moe_layers = traffic.moe_layers()
        self._random_picks = np.random.default_rng(options.seed)
        self._ranks = Ranks(options.gpus, options.gpus_per_node, options.slots_per_gpu)
        self._map_LP = first_map(traffic, options)
        self._weights = SlotWeights(self._map_LP, moe_layers=self._moe_layers)
        self._dispatcher = self._dispatcher_for(self._map_LP)
        self._waiting: list[tuple[GenerateRequest, Run, int, Future[dict[str, Any]]]] = []
        self._next_home = 0
        self._generation = 0
        self._pushing = False
        self._chunk_fault_left = options.faults.fail_chunk
        self._restart_left = options.faults.restart_chunk
        self._boot_id = uuid.uuid4().hex
        self.push_log = PushLog()
        self.steps = 0
        sizes = {"layers": traffic.layers, "experts": traffic.experts}
        self.recorder = StatRecorder(
            ring_steps=options.recorder_ring_steps,
            slots=self._map_LP.shape[1],
            counting_ranks=options.gpus if options.a2a == "none" else 1,
            **sizes,
        )
        self._demand = DemandRecorder(sources=options.gpus, **sizes)
        self._counters = DispatchCounters(
            layers=traffic.layers,
            gpus=options.gpus,
            gpus_per_node=options.gpus_per_node,
            slots_per_gpu=options.slots_per_gpu,
            all_to_all=options.a2a != "none",
        )

    # ------------------------------------------------------------------ serving

    def step(self) -> bool:
        """Serve one step of all ranks; return False when the trace has been served as often as asked for."""
        batch = self._batching.next_batch()
        if batch is None:
            return False
        recorded_LTK = self._traffic.experts_LRK[:, batch.row_T]
        present_LTK = recorded_LTK != NO_EXPERT
        experts_LTK = np.where(present_LTK, recorded_LTK, 0).astype(np.int64)
        slots_LTK = self._dispatcher.slots_of(experts_LTK, source_T=batch.source_T, random_picks=self._random_picks)
        step = RoutedStep(self.steps, self._generation, time.monotonic(), batch, experts_LTK, slots_LTK, present_LTK)
        self._counters.observe(step)
        self.recorder.observe(step)
        self._demand.observe(step)
        self.steps += 1
        self._answer_finished()
        return True

    def submit(self, request: GenerateRequest) -> Future[dict[str, Any]]:
        """Queue a request; its answer comes with the step that computes its last row."""
        run, home = run_for(request, self._traffic), request.dp_rank
        if home is None:
            home = self._next_home
            self._next_home = (home + 1) % self.options.gpus
        answer: Future[dict[str, Any]] = Future()
        self._batching.add(run, home=home)
        self._waiting.append((request, run, home, answer))
        return answer

    def _answer_finished(self) -> None:
        finished = [entry for entry in self._waiting if entry[1].finished]
        if not finished:
            return
        self._waiting = [entry for entry in self._waiting if not entry[1].finished]
        for request, run, home, answer in finished:
            with_ids = self.options.routed_experts
            answer.set_result(answer_to(request, run, self._traffic, home=home, with_ids=with_ids))

    # ------------------------------------------------------------------ what it says of itself

    def health(self) -> PluginHealth:
        return plugin_health(self.options)

    def server_info(self) -> dict[str, object]:
        """Return those of SGLang's server arguments that bear on experts."""
        return server_arguments(self.options, self._traffic, homes=self.homes, steps=self.steps)

    def asked_placement(self, *, checksums: bool) -> Placement:
        """Return what ``GET /moeplan/placement`` answers: checksums of a layout that changes would be of two layouts.

        Raises
        ------
        ContractViolation
            ``PUSH_IN_PROGRESS``, where checksums are asked for.
        """
        if checksums and self._pushing:
            raise ContractViolation("the layout changes while its checksums are read.", code="PUSH_IN_PROGRESS")
        return self.placement(checksums=checksums)

    def placement(self, *, checksums: bool) -> Placement:
        options, current_hash = self.options, layout_hash(self._map_LP)
        return Placement(
            engine=REPLAY_ENGINE,
            simulated=True,
            engine_version=REPLAYED_VERSION,
            model=self._traffic.model,
            layers=self._traffic.layers,
            moe_layers=self._moe_layers,
            experts=self._traffic.experts,
            slots=self._map_LP.shape[1],
            top_k=self._traffic.top_k,
            ep_size=options.gpus,
            nodes=options.nodes,
            dispatch=options.dispatch,
            a2a_backend=options.a2a,
            quantization=None,
            phase="both",
            expert_bytes=options.expert_bytes,
            free_bytes=None,
            map_LP=self._map_LP,
            layout_hash=current_hash,
            rank_hashes=self._rank_hashes(current_hash),
            generation=self._generation,
            push_in_progress=self._pushing,
            boot_id=self._boot_id,
            checksums=self._weights.checksums() if checksums else None,
        )

    def _rank_hashes(self, current_hash: str) -> tuple[str, ...]:
        odd = self.options.faults.odd_rank if self._generation else None
        return tuple("0" * 64 if rank == odd else current_hash for rank in range(self.options.gpus))

    def measured(self) -> Measured:
        counters = self._counters
        return Measured(
            engine=REPLAY_ENGINE,
            simulated=True,
            layout_hash=layout_hash(self._map_LP),
            generation=self._generation,
            push_in_progress=self._pushing,
            steps=counters.steps,
            tokens=counters.tokens,
            counts_LSG=counters.counts_LSG.copy(),
            **vars(counters.shares()),
        )

    # ------------------------------------------------------------------ demand

    @property
    def is_watched(self) -> bool:
        """Whether anybody sees what a step routes: demand is recorded, or a request waits."""
        return self._demand.recording or bool(self._waiting)

    def start_demand(self, options: DemandOptions) -> DemandState:
        ended = self._demand.start(options)
        return replace(self._demand_state(), taken_over_from=ended)

    def stop_demand(self) -> DemandState:
        self._demand.stop()
        return self._demand_state()

    def fetch_demand(self, max_windows: int) -> DemandAnswer:
        layers, sources, experts = self._demand.shape
        state = self._demand_state()
        return DemandAnswer(
            engine=state.engine,
            simulated=state.simulated,
            recording=state.recording,
            recording_id=state.recording_id,
            steps=state.steps,
            layers=layers,
            sources=sources,
            experts=experts,
            windows=self._demand.fetch(max_windows),
            remaining=self._demand.waiting_windows,
            dropped_windows=self._demand.dropped_windows,
        )

    def _demand_state(self) -> DemandState:
        demand = self._demand
        return DemandState(REPLAY_ENGINE, True, demand.recording, demand.recording_id, demand.steps, demand.owner)

    def dump_record(self) -> npt.NDArray[np.int32]:
        """Return the recorder's expert counts, int32 [ring steps, L, E], and reset it."""
        return self.recorder.dump(self._map_LP)

    # ------------------------------------------------------------------ push

    def begin_push(self, request: PushRequest) -> PushPlan:
        """Check a push as a whole; unless it is a dry run, no other one begins until :meth:`end_push`.

        Raises
        ------
        ContractViolation
            As :func:`profiler.replay.pushing.plan_push`; ``PUSH_IN_PROGRESS`` while another push is under way;
            ``DISPATCH_NOT_SET`` when expert ids are taken for slots.
        """
        if self.options.dispatch is None:
            raise ContractViolation(WITHOUT_DISPATCH, code="DISPATCH_NOT_SET")
        if self._pushing:
            raise ContractViolation("another push is under way; read the layout after it.", code="PUSH_IN_PROGRESS")
        plan = plan_push(
            request,
            self._map_LP,
            experts=self._traffic.experts,
            gpus=self.options.gpus,
            expert_bytes=self.options.expert_bytes,
        )
        if not request.dry_run:
            self._pushing = True
            self.push_log.begin(plan, boot_id=self._boot_id)
        return plan

    def apply_chunk(self, plan: PushPlan, number: int) -> float:
        """Apply chunk ``number`` (from 1) of a push; return the seconds it took.

        Raises
        ------
        ChunkFailed
            As asked for by ``Faults.fail_chunk``.
        Restarted
            As asked for by ``Faults.restart_chunk``.
        """
        started_s = time.perf_counter()
        if self._restart_left == number:
            self._restart_left = None
            self.start_anew()
            raise Restarted
        if self._chunk_fault_left == number:
            self._chunk_fault_left = None
            raise ChunkFailed(f"chunk {number} failed on rank 0 (a fault asked for)")
        layers = plan.chunks[number - 1].layers
        new_LP = self._map_LP.copy()
        new_LP[list(layers)] = plan.request.map_LP[list(layers)]
        self._weights.move(self._map_LP, new_LP, layers=layers, left_behind=self.options.faults.left_behind)
        self._map_LP = new_LP
        self._dispatcher = self._dispatcher_for(new_LP)
        self._generation += number == 1
        self._counters.reset()
        self.push_log.applied(layout_hash(new_LP))
        return time.perf_counter() - started_s

    def end_push(self, status: str) -> None:
        """Let the next push begin."""
        self._pushing = False
        self.push_log.end(status)

    def start_anew(self) -> None:
        """Be as after a start; the trace goes on where it is, since traffic does not begin again with an engine."""
        self._map_LP = first_map(self._traffic, self.options)
        self._weights = SlotWeights(self._map_LP, moe_layers=self._moe_layers)
        self._dispatcher = self._dispatcher_for(self._map_LP)
        self._demand = DemandRecorder(
            layers=self._traffic.layers, sources=self.options.gpus, experts=self._traffic.experts
        )
        self._counters.reset()
        self._generation = 0
        self._boot_id = uuid.uuid4().hex

    def _dispatcher_for(self, map_LP: npt.NDArray[np.int32]) -> Dispatcher:
        kind = dispatcher_class(dispatch=self.options.dispatch, a2a_backend=self.options.a2a)
        return kind.for_map(map_LP, experts=self._traffic.experts, ranks=self._ranks)
