"""How a search goes: the best plan so far beside what is proven, told whenever one of them changes.

Nothing here changes what is found. A plan is whole: every layer has its layout, and its figure is the one that is
planned for, over all layers and windows. So is the bound. At the end a plan may give a little of its figure up for
something else (other traffic, fewer moves); that is told too, so the last thing told is what is handed back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from placement.problem import LocalScope, Objective, Problem
from placement.solver.goal import CAP_SLACK
from placement.solver.plans import Plans
from placement.solver.proofs import Proofs


class Stage(StrEnum):
    """What the search was doing, with a sentence for people."""

    SEARCH = "search"
    HEDGE = "hedge"
    OVERFLOW = "overflow"
    STAY = "stay"
    MOVES = "moves"
    PROVE = "prove"

    @property
    def sentence(self) -> str:
        return SENTENCES[self]


SENTENCES = {
    Stage.SEARCH: "layouts are looked for",
    Stage.HEDGE: "a little is given up for replica counts that hold on other traffic",
    Stage.OVERFLOW: "the cap on overflow is kept",
    Stage.STAY: "of equally good plans the one that moves least is taken",
    Stage.MOVES: "the moves that are allowed are kept",
    Stage.PROVE: "the bound is tightened",
}


class Figure(StrEnum):
    """What a plan is made for."""

    LOCAL_GPU = "local_gpu"
    LOCAL_NODE = "local_node"
    IMBALANCE = "imbalance"
    GPUS_PER_TOKEN = "gpus_per_token"  # noqa: S105  (tokens of text)
    MOE_LAYER_S = "moe_layer_s"

    @property
    def higher_is_better(self) -> bool:
        return self in (Figure.LOCAL_GPU, Figure.LOCAL_NODE)


@dataclass(frozen=True)
class Standing:
    """Where a search stands.

    Attributes
    ----------
    figure : Figure
        What is planned for; for ``imbalance`` the worst window's.
    best : float or None
        Of the best plan so far; None while no plan keeps the cap.
    bound : float or None
        Proven: no layout's figure is better. None where nothing is proven.
    imbalance : float or None
        Worst window's imbalance of that plan; while no plan keeps the cap, of the flattest one. None where it is not
        known before the end.
    cap : float or None
        On the worst window's imbalance: the one asked for, or the smallest found where that was out of reach. None
        where imbalance is not capped.
    slots_per_gpu : int
        The number of slots that is searched for is tried from the smallest on.
    stage : Stage
    """

    figure: Figure
    best: float | None
    bound: float | None
    imbalance: float | None
    cap: float | None
    slots_per_gpu: int
    stage: Stage = Stage.SEARCH


Watch = Callable[[Standing], None]


def unwatched(_: Standing) -> None:
    """Watch nothing."""


@dataclass(eq=False)
class Course:
    """Keeps the best figure of the plans that it is shown, and tells ``watch`` of every change."""

    watch: Watch
    figure: Figure
    cap: float | None
    slots_per_gpu: int
    best: float | None = None
    bound: float | None = None
    imbalance: float | None = None
    _told: Standing | None = field(default=None, init=False)

    def see(self, plans: Plans) -> None:
        """Show a plan whose ``local`` is the share planned for."""
        if self.figure is Figure.IMBALANCE:
            self.see_figure(plans.imbalance, imbalance=plans.imbalance)
        else:
            self.see_figure(plans.local, imbalance=plans.imbalance)

    def see_figure(self, value: float, *, imbalance: float) -> None:
        """Show a plan by its figure; it counts where it keeps the cap."""
        if self.cap is not None and imbalance > self.cap * (1 + CAP_SLACK):
            if self.best is None and (self.imbalance is None or imbalance < self.imbalance):
                self.imbalance = imbalance
                self._tell(Stage.SEARCH)
            return
        if self.best is None or (value > self.best if self.figure.higher_is_better else value < self.best):
            self.best, self.imbalance = value, imbalance
            self._tell(Stage.SEARCH)

    def loosen(self, cap: float, columns: list[Plans]) -> None:
        """Take the smallest imbalance found as the cap, and look at all plans once more."""
        if self.cap is None or cap <= self.cap:
            return
        self.cap = cap
        for plans in columns:
            self.see(plans)

    def prove(self, proofs: Proofs) -> None:
        """Take over what is proven by now."""
        locality = self.figure.higher_is_better and proofs.locality is not None
        self.bound = proofs.local if locality else proofs.bound.imbalance
        self._tell(Stage.PROVE)

    def prove_figure(self, bound: float | None) -> None:
        """Take over a bound on the figure itself."""
        self.bound = bound
        self._tell(Stage.PROVE)

    def settle(self, plans: Plans, stage: Stage) -> None:
        """Take a plan as the one to go on with, better or not."""
        value = plans.imbalance if self.figure is Figure.IMBALANCE else plans.local
        self.settle_figure(value, imbalance=plans.imbalance, stage=stage)

    def settle_figure(self, value: float, *, imbalance: float | None, stage: Stage) -> None:
        """Take a plan by its figure as the one to go on with, better or not."""
        self.best, self.imbalance = value, imbalance
        self._tell(stage)

    def _tell(self, stage: Stage) -> None:
        standing = Standing(self.figure, self.best, self.bound, self.imbalance, self.cap, self.slots_per_gpu, stage)
        nothing_yet = standing.best is None and standing.bound is None and standing.imbalance is None
        if nothing_yet or (self._told is not None and _same(self._told, standing)):
            return
        self._told = standing
        self.watch(standing)


def course_of(problem: Problem, proofs: Proofs, watch: Watch) -> Course:
    """Begin to follow the search for a problem of the objectives ``locality`` or ``balance``."""
    figure, cap = Figure.IMBALANCE, None
    if problem.objective is Objective.LOCALITY and proofs.locality is not None:
        figure = Figure.LOCAL_NODE if problem.local_scope is LocalScope.NODE else Figure.LOCAL_GPU
        cap = problem.max_imbalance
    course = Course(watch, figure, cap, problem.slots_per_gpu)
    course.prove(proofs)
    return course


def _same(one: Standing, other: Standing) -> bool:
    return (one.best, one.bound, one.imbalance, one.cap) == (other.best, other.bound, other.imbalance, other.cap)
