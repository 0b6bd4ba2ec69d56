"""A batch of layers while it is being searched: slots, hosts, loads, all kept in step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.solver.instance import Bools, Floats, Instance, Ints

Slots = npt.NDArray[np.int64]
"""int64 [L, G, P]: the expert in every slot of every GPU."""


@dataclass(frozen=True, eq=False)
class SwapList:
    """Swaps to make together: slot ``a`` of ``gpu_a`` for slot ``b`` of ``gpu_b`` in ``layer``; GPUs differ."""

    layer: Ints
    gpu_a: Ints
    slot_a: Ints
    gpu_b: Ints
    slot_b: Ints

    def pick(self, chosen: Bools) -> SwapList:
        return SwapList(
            self.layer[chosen], self.gpu_a[chosen], self.slot_a[chosen], self.gpu_b[chosen], self.slot_b[chosen]
        )


class Placing:
    """Mutable layouts of all layers of an instance; the one place where the search changes anything.

    Attributes
    ----------
    slots_LGP : ndarray
        int64, expert of every slot.
    hosts_LEG : ndarray
        bool.
    replicas_LE : ndarray
        int64, hosts of every expert.
    loads_WLG : ndarray
        float64, exact under the instance's dispatch.
    item_WLE : ndarray
        Even instances only: the load of one replica.
    shares_WLEG : ndarray
        Other instances: the load that expert e puts on GPU g.
    """

    def __init__(self, instance: Instance, slots_LGP: Slots) -> None:
        self.instance = instance
        self.slots_LGP = np.array(slots_LGP, dtype=np.int64)
        layer_L11 = np.arange(instance.layers)[:, None, None]
        self.hosts_LEG = np.zeros((instance.layers, instance.experts, instance.gpus), dtype=np.bool_)
        self.hosts_LEG[layer_L11, self.slots_LGP, np.arange(instance.gpus)[None, :, None]] = True
        self.replicas_LE = self.hosts_LEG.sum(axis=2)
        self.item_WLE = instance.total_WLE / self.replicas_LE
        shares = (0,) if instance.even else (instance.windows, *self.hosts_LEG.shape)
        self.shares_WLEG = np.zeros(shares)
        self.loads_WLG = np.zeros((instance.windows, instance.layers, instance.gpus))
        self.recount(np.arange(instance.layers))

    def recount(self, rows: Ints) -> None:
        """Work out the loads of some layers from their hosts alone."""
        if self.instance.even:
            for layer in rows.tolist():
                items_WE = self.item_WLE[:, layer]
                self.loads_WLG[:, layer] = items_WE[:, self.slots_LGP[layer]].sum(axis=2)
            return
        experts = self.instance.experts
        for layer in rows.tolist():
            expert_E = np.arange(experts)
            shares_WEG = self.instance.loads_of(np.full(experts, layer), expert_E, self.hosts_LEG[layer])
            self.shares_WLEG[:, layer] = shares_WEG
            self.loads_WLG[:, layer] = shares_WEG.sum(axis=1)

    def peaks(self) -> Floats:
        """Return the largest GPU load, float64 [W, L]."""
        peaks_WL: Floats = self.loads_WLG.max(axis=2)
        return peaks_WL

    def swap(self, swaps: SwapList) -> None:
        """Make the swaps. In every layer no GPU may occur twice, and no expert may already be where it goes."""
        layer, gpu_a, gpu_b = swaps.layer, swaps.gpu_a, swaps.gpu_b
        expert_a = self.slots_LGP[layer, gpu_a, swaps.slot_a]
        expert_b = self.slots_LGP[layer, gpu_b, swaps.slot_b]
        self.slots_LGP[layer, gpu_a, swaps.slot_a] = expert_b
        self.slots_LGP[layer, gpu_b, swaps.slot_b] = expert_a
        self.hosts_LEG[layer, expert_a, gpu_a] = False
        self.hosts_LEG[layer, expert_b, gpu_b] = False
        self.hosts_LEG[layer, expert_a, gpu_b] = True
        self.hosts_LEG[layer, expert_b, gpu_a] = True
        if self.instance.even:
            change_WK = self.item_WLE[:, layer, expert_b] - self.item_WLE[:, layer, expert_a]
            self.loads_WLG[:, layer, gpu_a] += change_WK
            self.loads_WLG[:, layer, gpu_b] -= change_WK
        else:
            self._reshare(np.concatenate([layer, layer]), np.concatenate([expert_a, expert_b]))

    def replace(self, layer: Ints, gpu: Ints, slot: Ints, expert: Ints) -> None:
        """Put ``expert`` into a slot instead of what it holds; at most one slot per layer."""
        leaving = self.slots_LGP[layer, gpu, slot]
        self.slots_LGP[layer, gpu, slot] = expert
        self.hosts_LEG[layer, leaving, gpu] = False
        self.hosts_LEG[layer, expert, gpu] = True
        self.replicas_LE[layer, leaving] -= 1
        self.replicas_LE[layer, expert] += 1
        both_layer, both_expert = np.concatenate([layer, layer]), np.concatenate([leaving, expert])
        self.item_WLE[:, both_layer, both_expert] = (
            self.instance.total_WLE[:, both_layer, both_expert] / self.replicas_LE[both_layer, both_expert]
        )
        if self.instance.even:
            self.recount(layer)
        else:
            self._reshare(both_layer, both_expert)

    def _reshare(self, layer_K: Ints, expert_K: Ints) -> None:
        experts = self.instance.experts
        cells = np.unique(layer_K * experts + expert_K)
        layer_K, expert_K = np.divmod(cells, experts)
        fresh_WKG = self.instance.loads_of(layer_K, expert_K, self.hosts_LEG[layer_K, expert_K])
        change_WKG = fresh_WKG - self.shares_WLEG[:, layer_K, expert_K]
        self.shares_WLEG[:, layer_K, expert_K] = fresh_WKG
        # Cells are sorted by layer: add up every layer's run of them.
        starts = np.flatnonzero(np.diff(layer_K, prepend=-1))
        self.loads_WLG[:, layer_K[starts]] += np.add.reduceat(change_WKG, starts, axis=1)

    def save(self, rows: Ints) -> tuple[npt.NDArray[np.generic], ...]:
        """Copy what :meth:`restore` needs to undo changes in some layers."""
        shares = self.shares_WLEG[:, rows] if self.shares_WLEG.ndim > 1 else self.shares_WLEG
        return (
            self.slots_LGP[rows],
            self.hosts_LEG[rows],
            self.replicas_LE[rows],
            self.item_WLE[:, rows],
            self.loads_WLG[:, rows],
            shares,
        )

    def restore(self, rows: Ints, saved: tuple[npt.NDArray[np.generic], ...], undone: Bools) -> None:
        """Put back those of the saved ``rows`` that are marked in ``undone``."""
        back = rows[undone]
        slots, hosts, replicas, items, loads, shares = saved
        self.slots_LGP[back] = slots[undone]
        self.hosts_LEG[back] = hosts[undone]
        self.replicas_LE[back] = replicas[undone]
        self.item_WLE[:, back] = items[:, undone]
        self.loads_WLG[:, back] = loads[:, undone]
        if shares.ndim > 1:
            self.shares_WLEG[:, back] = shares[:, undone]

    def node_hosts(self, layer: Ints, expert: Ints, node: Ints) -> Ints:
        """Count the hosts of experts inside nodes; the indices broadcast together."""
        inside = self.instance.gpus_per_node
        gpu = node[..., None] * inside + np.arange(inside)
        hosts: Ints = self.hosts_LEG[np.asarray(layer)[..., None], np.asarray(expert)[..., None], gpu].sum(axis=-1)
        return hosts
