"""Searching one layer as a task of its own: everything a worker needs and no more, so that it can be sent away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from placement.solver.batches import MapTasks
from placement.solver.deadline import Deadline
from placement.solver.instance import Floats, Instance, Ints
from placement.solver.placing import Slots
from placement.solver.plans import Plans
from placement.solver.starts import hosts_of_slots, slots_of_hosts
from placement.solver.traffic.copies import LayerCopies
from placement.solver.traffic.descent import Effort, LayerDescent
from placement.solver.traffic.layer_tokens import LayerTokens, layer_tokens
from placement.tokens import Tokens


@dataclass(frozen=True, eq=False)
class TrafficTask:
    """One layer to search for fewer copies.

    Attributes
    ----------
    instance : Instance
        Of this layer alone.
    tokens : LayerTokens
    slots_GP : ndarray
        Where to start.
    ceiling : float
        Load, in means, that GPUs should not exceed in any window.
    effort : Effort
    seed : tuple of int
        Of kicks.
    deadline : Deadline
        Of the whole search.
    time_share : float
        Of the time that is left when this task begins.
    """

    instance: Instance
    tokens: LayerTokens
    slots_GP: Ints
    ceiling: float
    effort: Effort
    seed: tuple[int, ...]
    deadline: Deadline
    time_share: float = 1.0


def run_traffic(task: TrafficTask) -> Plans:
    """Search one layer; the function that is mapped over tasks.

    Returns the layouts found, in place of layers: those on the way that were to be kept, and the last one. ``local_L``
    is minus the copies per token.
    """
    instance, has_replicas = task.instance, task.instance.slots > task.instance.experts
    descent = LayerDescent(
        instance,
        task.tokens.thinned(task.effort.most_tokens),
        hosts_of_slots(task.slots_GP[None], experts=instance.experts)[0],
        ceiling=task.ceiling,
        has_replicas=has_replicas,
        deadline=task.deadline.part(task.time_share),
    )
    found = descent.run(task.effort, np.random.default_rng(task.seed))
    if task.tokens.tokens > task.effort.most_tokens:
        found = [
            (hosts_EG, LayerCopies(task.tokens, hosts_EG, has_replicas=has_replicas).copies, load_WG)
            for hosts_EG, _, load_WG in found
        ]
    return Plans(
        np.concatenate([slots_of_hosts(hosts_EG[None]) for hosts_EG, _, _ in found]),
        -np.array([copies for _, copies, _ in found]),
        np.stack([instance.weight_WL[:, 0] * load_WG.max(axis=1) for _, _, load_WG in found], axis=1),
    )


@dataclass(frozen=True, eq=False)
class TrafficSearcher:
    """Runs the search on all MoE layers.

    Attributes
    ----------
    instance : Instance
    layers : tuple of LayerTokens
        One per MoE layer.
    part_L : ndarray
        Each layer's part of all (token, layer) pairs: copies per token of the plan are the sum of the layers' with
        these weights.
    map_tasks : callable
    deadline : Deadline
    seed : int
    """

    instance: Instance
    layers: tuple[LayerTokens, ...]
    part_L: Floats
    map_tasks: MapTasks
    deadline: Deadline
    seed: int

    def columns(self, slots_LGP: Slots, *, ceiling: float, effort: Effort) -> list[Plans]:
        """Search every layer from the layouts given; return the layouts found, the last ones last.

        ``local_L`` of a column is minus what the layer adds to the plan's copies per token.
        """
        tasks = self._tasks(slots_LGP, ceiling=ceiling, effort=effort)
        found = list(self.map_tasks(run_traffic, tasks))
        count = max(len(plans.local_L) for plans in found)
        return [self._column(found, step) for step in range(count)]

    def measured(self, slots_LGP: Slots) -> Plans:
        """Return layouts with their copies, as they are."""
        return self.columns(slots_LGP, ceiling=1.0, effort=Effort(rounds=0))[-1]

    def _tasks(self, slots_LGP: Slots, *, ceiling: float, effort: Effort) -> Iterator[TrafficTask]:
        for layer, tokens in enumerate(self.layers):
            yield TrafficTask(
                self.instance.take(np.array([layer])),
                tokens,
                slots_LGP[layer],
                ceiling,
                effort,
                (self.seed, layer),
                self.deadline,
                # What is left of the time is for all the layers that are left, or the last ones would get none.
                1 / (len(self.layers) - layer),
            )

    def _column(self, found: Sequence[Plans], step: int) -> Plans:
        """Take layout ``step`` of every layer, the last one of those that have fewer."""
        place_L = [min(step, len(plans.local_L) - 1) for plans in found]
        return Plans(
            np.stack([plans.slots_LGP[place] for plans, place in zip(found, place_L, strict=True)]),
            np.array([plans.local_L[place] for plans, place in zip(found, place_L, strict=True)]) * self.part_L,
            np.stack([plans.peak_WL[:, place] for plans, place in zip(found, place_L, strict=True)], axis=1),
        )


def tokens_by_layer(tokens: Tokens, moe_layers: Sequence[int], instance: Instance) -> tuple[LayerTokens, ...]:
    """Return the tokens of every MoE layer as the search asks about them."""
    return tuple(
        layer_tokens(
            tokens.experts_LTK[layer],
            tokens.home_T,
            experts=instance.experts,
            gpus=instance.gpus,
            nodes=instance.nodes,
            has_replicas=instance.slots > instance.experts,
        )
        for layer in moe_layers
    )


def parts_of_layers(tokens: Tokens, moe_layers: Sequence[int]) -> Floats:
    """Return every layer's part of the (token, layer) pairs with experts; float64 [L], sums to 1."""
    used_L = [(tokens.experts_LTK[layer] < tokens.experts).any(axis=1).sum() for layer in moe_layers]
    part_L: Floats = np.array(used_L) / np.sum(used_L)
    return part_L
