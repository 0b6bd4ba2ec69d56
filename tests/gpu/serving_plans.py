"""Plans to serve with: at the fewest slots that reach an own-GPU share, and at those with the least step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from placement.layout import Layout
from tests.gpu.checkpoints import CHECKPOINTS, Checkpoint
from tests.gpu.layouts import layers_with_experts
from tests.gpu.machine import Machine
from tests.gpu.plans import MadePlan, WantedPlan, make_plans, write_trace
from tests.gpu.results import Results
from tests.gpu.serving_cases import ServingCase, ServingScale, config_file
from tests.gpu.slot_choice import LOCAL_TARGET, choose_slots, slots_to_try
from tests.gpu.traffic import Routed

FEWEST, LEAST_TIME = "moeplan locality", "moeplan step-time"


@dataclass(frozen=True)
class CasePlans:
    """What is served of one case, of the layers with experts.

    Attributes
    ----------
    case : ServingCase
    layouts : mapping
        By name: at the fewest slots, and at those chosen for step time. One that could not be made is missing.
    """

    case: ServingCase
    layouts: Mapping[str, Layout]

    def at(self, slots: int) -> dict[str, Layout]:
        """Return the layouts with so many slots; equal ones are one, with both names."""
        names: dict[str, list[str]] = {}
        by_hash = {}
        for name, layout in self.layouts.items():
            if layout.slots == slots:
                names.setdefault(layout.hash, []).append(name)
                by_hash[layout.hash] = layout
        return {" = ".join(each): by_hash[layout_hash] for layout_hash, each in names.items()}


class Planner:
    """Makes plans with moeplan's command from the planned half of each case.

    Parameters
    ----------
    machine, scale, results
    checkpoint : str
    hardware : Path or str
        Profile to predict step times with.
    """

    def __init__(
        self, machine: Machine, scale: ServingScale, results: Results, *, checkpoint: str, hardware: Path | str
    ) -> None:
        self._machine, self._scale, self._results = machine, scale, results
        self._checkpoint, self._hardware = checkpoint, hardware

    def plan(self, cases: Sequence[ServingCase], routed: Mapping[str, Routed]) -> list[CasePlans]:
        """Plan all cases; those with the same homes get the same fewest slots, so that one engine serves them.

        ``routed`` is the planned half by the case's name.
        """
        for case in cases:
            write_trace(self._trace(case), routed[case.name], experts=self._model.experts, tokens_per_step=None)
        fewest = self._fewest(cases)
        by_number = [
            self._wanted(case, "step-time", slots // self._machine.gpus)
            for case in cases
            for slots in slots_to_try(experts=self._model.experts, gpus=self._machine.gpus)
        ]
        made = self._make(by_number)
        return [self._chosen(case, fewest, [plan for plan in made if plan.wanted.name == case.name]) for case in cases]

    @property
    def _model(self) -> Checkpoint:
        return CHECKPOINTS[self._checkpoint]

    def _trace(self, case: ServingCase) -> Path:
        return self._machine.root / f"{self._checkpoint}-{case.name}.npz".replace(" ", "-")

    def _wanted(self, case: ServingCase, objective: str, slots_per_gpu: int | None) -> WantedPlan:
        in_flight = max(1, max(self._scale.concurrency) // self._machine.gpus)
        tokens = self._scale.step_tokens if case.mix.phase == "prefill" else in_flight
        step = ("--step-phase", case.mix.phase, "--step-tokens", tokens)
        return WantedPlan(case.name, objective, self._trace(case), slots_per_gpu, local_target=LOCAL_TARGET, step=step)

    def _fewest(self, cases: Sequence[ServingCase]) -> dict[str, Layout]:
        """Return the layout of each case at the fewest slots that all cases of its homes reach the target with."""
        made = self._make([self._wanted(case, "locality", None) for case in cases])
        found = {plan.wanted.name: plan.layout for plan in made if plan.layout is not None}
        most = {
            homes: max(
                (found[case.name].slots for case in cases if case.homes == homes and case.name in found), default=0
            )
            for homes in {case.homes for case in cases}
        }
        again = [case for case in cases if case.name in found and found[case.name].slots < most[case.homes]]
        wider = self._make([self._wanted(case, "locality", most[case.homes] // self._machine.gpus) for case in again])
        return found | {plan.wanted.name: plan.layout for plan in wider if plan.layout is not None}

    def _chosen(self, case: ServingCase, fewest: Mapping[str, Layout], made: Sequence[MadePlan]) -> CasePlans:
        layouts = {FEWEST: fewest[case.name]} if case.name in fewest else {}
        by_slots, seconds = {}, {}
        for plan in made:
            predicted_s = moe_layer_s(plan)
            if plan.layout is not None and predicted_s is not None:
                by_slots[plan.layout.slots], seconds[plan.layout.slots] = plan.layout, predicted_s
        chosen = choose_slots(seconds)
        if chosen is not None:
            layouts[LEAST_TIME] = by_slots[chosen]
        self._results.add(
            "slots",
            case=case.name,
            fewest=fewest[case.name].slots if case.name in fewest else None,
            chosen=chosen,
            moe_layer_us={slots: round(1e6 * each, 1) for slots, each in seconds.items()},
        )
        return CasePlans(case, layouts)

    def _make(self, wanted: Sequence[WantedPlan]) -> list[MadePlan]:
        config = config_file(self._machine.root, self._checkpoint)
        made = make_plans(self._machine, wanted, model=config, hardware=self._hardware, time_limit_s=self._scale.plan_s)
        return [self._kept(plan) for plan in made]

    def _kept(self, plan: MadePlan) -> MadePlan:
        """Keep what was planned as a finding; return it without rows of layers that have no experts."""
        metrics = plan.summary.get("metrics", {})
        self._results.add(
            "plan",
            model=self._checkpoint,
            goal=plan.wanted.objective,
            case=plan.wanted.name,
            slots=None if plan.layout is None else plan.layout.slots,
            error=plan.error,
            moe_layer_s=moe_layer_s(plan),
            **{key: metrics.get(key) for key in ("local_gpu", "imbalance", "gpus_per_token")},
        )
        if plan.layout is None:
            return plan
        return replace(plan, layout=layers_with_experts(plan.layout, dense_layers=self._model.dense_layers))


def moe_layer_s(plan: MadePlan) -> float | None:
    """Return the predicted time of a MoE layer, None where none was printed."""
    found = (plan.summary.get("metrics", {}).get("moe_layer") or {}).get("moe_layer_s")
    return None if found is None else float(found)
