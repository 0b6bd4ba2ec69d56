"""Local search in one layer: fewer copies per token under a ceiling on every GPU's load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.solver.deadline import Deadline
from placement.solver.instance import Bools, Floats, Instance
from placement.solver.traffic.copies import LayerCopies
from placement.solver.traffic.layer_tokens import LayerTokens
from placement.solver.traffic.load import LayerLoad
from placement.solver.traffic.steps import Step, hosts_after, is_possible, likely_steps
from placement.solver.traffic.worth import worth_of_steps

PRICE_OF_EXCESS = 50.0
"""Copies per token that a unit of load above the ceiling costs: more than any step can save."""

LEAST_GAIN = 1e-7
"""Improvement, in copies per token, below which a step is rounding."""


@dataclass(frozen=True)
class Effort:
    """How long one layer is searched.

    Attributes
    ----------
    rounds : int
        Evaluations of all steps in one descent.
    tries : int
        Steps worked out exactly per round, best first.
    kicks : int
        Descents from a disturbed optimum after the first one.
    kicked_part : float
        Part of the experts that a kick moves.
    kept_rounds : int
        Layouts after so many first rounds are kept, on the way from a layout near which to stay.
    most_tokens : int
        Tokens searched on; what is found is measured on all.
    """

    rounds: int = 40
    tries: int = 160
    kicks: int = 0
    kicked_part: float = 0.1
    kept_rounds: int = 0
    most_tokens: int = 2**31


Found = tuple[Bools, float, Floats]
"""Hosts [E, G], copies per token, loads [W, G]."""


class LayerDescent:
    """A layer that is being searched."""

    def __init__(
        self,
        instance: Instance,
        tokens: LayerTokens,
        hosts_EG: Bools,
        *,
        ceiling: float,
        has_replicas: bool,
        deadline: Deadline,
    ) -> None:
        self._instance = instance
        self._tokens = tokens
        self._ceiling = ceiling
        self._has_replicas = has_replicas
        self._deadline = deadline
        self._take(hosts_EG)

    def _take(self, hosts_EG: Bools) -> None:
        self.copies = LayerCopies(self._tokens, hosts_EG, has_replicas=self._has_replicas)
        self.load = LayerLoad(self._instance, hosts_EG, ceiling=self._ceiling)

    @property
    def hosts_EG(self) -> Bools:
        return self.copies.hosts_EG

    @property
    def value(self) -> float:
        return self.copies.copies + PRICE_OF_EXCESS * self.load.excess

    def run(self, effort: Effort, generator: np.random.Generator) -> list[Found]:
        """Descend, then kick and descend again; return what was to be kept on the way, and the best."""
        kept = []
        for round_number in range(effort.rounds):
            if self._deadline.passed or not self._round(effort):
                break
            if round_number < effort.kept_rounds:
                kept.append(self._found())
        best, best_EG, kicked = self.value, self.hosts_EG.copy(), effort.kicks > 0
        for _ in range(effort.kicks):
            if self._deadline.passed:
                break
            self._kick(generator, part=effort.kicked_part)
            self._descend(effort)
            if self.value < best - LEAST_GAIN:
                best, best_EG = self.value, self.hosts_EG.copy()
            else:
                self._take(best_EG)
        if kicked:
            self._take(best_EG)
        return [*kept, self._found()]

    def _found(self) -> Found:
        return self.hosts_EG.copy(), self.copies.copies, self.load.load_WG.copy()

    def _descend(self, effort: Effort) -> None:
        for _ in range(effort.rounds):
            if self._deadline.passed or not self._round(effort):
                return

    def _round(self, effort: Effort) -> int:
        """Evaluate all steps, and take those of the best that improve when worked out exactly; return how many."""
        worth = worth_of_steps(self.copies.exposed_ESG(), self.hosts_EG)
        steps = likely_steps(worth, self.hosts_EG, self.load, price=PRICE_OF_EXCESS, most=effort.tries)
        taken = 0
        # What steps seem to be worth no longer holds for experts that were moved.
        moved: set[int] = set()
        for index in range(len(steps.a_X)):
            if self._deadline.passed:
                break
            step = steps.step(index)
            if moved.isdisjoint((step.a, step.b)) and self._try(step, float(steps.copies_X[index])):
                moved.update((step.a, step.b))
                taken += 1
        self.load.recount()
        return taken

    def _try(self, step: Step, seems: float) -> bool:
        """Take a step if it improves; ``seems`` is how copies per token would change at best."""
        if not is_possible(step, self.hosts_EG):
            return False
        experts, hosts_2G = [step.a, step.b], hosts_after(step, self.hosts_EG)
        share_W2G, load_WG = self.load.with_hosts(experts, hosts_2G)
        dearer = PRICE_OF_EXCESS * (self.load.excess_of(load_WG) - self.load.excess)
        if seems + dearer > -LEAST_GAIN:
            return False
        change = self.copies.change(experts, hosts_2G)
        if change.copies + dearer > -LEAST_GAIN:
            return False
        self.copies.apply(experts, hosts_2G, change)
        self.load.apply(experts, share_W2G, load_WG)
        return True

    def _kick(self, generator: np.random.Generator, *, part: float) -> None:
        """Exchange some experts at random between GPUs."""
        hosts_EG = self.hosts_EG.copy()
        experts, gpus = hosts_EG.shape
        for _ in range(max(1, round(part * experts / 2))):
            one, other = generator.choice(gpus, size=2, replace=False)
            a = generator.choice(np.flatnonzero(hosts_EG[:, one]))
            b = generator.choice(np.flatnonzero(hosts_EG[:, other]))
            if not hosts_EG[a, other] and not hosts_EG[b, one]:
                hosts_EG[a, [one, other]] = False, True
                hosts_EG[b, [one, other]] = True, False
        self._take(hosts_EG)
