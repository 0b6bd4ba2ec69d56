"""First layouts: how many replicas every expert gets, and a packing of them onto the GPUs."""

from __future__ import annotations

import numpy as np

from placement.solver.instance import Bools, Floats, Instance, Ints
from placement.solver.placing import Slots

HALVINGS = 30


def replicas_by_load(key_WLE: Floats, *, gpus: int, slots: int) -> Ints:
    """Return replica counts that make the largest load per replica small; int64 [L, E].

    ``key_WLE`` are loads under several views (windows, or one merged view); an expert's load per replica is the
    largest over them. Counts follow a threshold found by bisection, the rest goes one by one to the highest
    load per replica (Adams' method of apportionment, as in EPLB's replication step).
    """
    load_LE = key_WLE.max(axis=0)
    low_L, high_L = np.zeros(len(load_LE)), load_LE.max(axis=1)
    for _ in range(HALVINGS):
        middle_L = (low_L + high_L) / 2
        fits_L = replicas_below(key_WLE, middle_L, gpus=gpus).sum(axis=1) <= slots
        low_L, high_L = np.where(fits_L, low_L, middle_L), np.where(fits_L, middle_L, high_L)
    replicas_LE = replicas_below(key_WLE, high_L, gpus=gpus)
    spare_L = slots - replicas_LE.sum(axis=1)
    while (rows := np.flatnonzero(spare_L > 0)).size:
        open_KE = replicas_LE[rows] < gpus
        expert = np.where(open_KE, load_LE[rows] / replicas_LE[rows], -1.0).argmax(axis=1)
        # Experts without load: one step of one replica per expert would take long, so they fill up in one go.
        idle = load_LE[rows, expert] <= 0
        replicas_LE[rows, expert] += np.where(idle, np.minimum(spare_L[rows], gpus - replicas_LE[rows, expert]), 1)
        spare_L = slots - replicas_LE.sum(axis=1)
    return replicas_LE


def replicas_below(key_WLE: Floats, ceiling_L: Floats, *, gpus: int) -> Ints:
    """Return the fewest replicas, 1 to ``gpus``, with at most ``ceiling_L`` load on each; int64 [L, E]."""
    load_LE = key_WLE.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed_LE = np.ceil(np.where(load_LE > 0, load_LE / ceiling_L[:, None], 1.0) * (1 - 1e-12))
    replicas_LE: Ints = np.clip(np.nan_to_num(needed_LE, posinf=gpus), 1, gpus).astype(np.int64)
    return replicas_LE


def replicas_filling_hottest(value_LE: Floats, *, least_LE: Ints, gpus: int, slots: int) -> Ints:
    """Raise counts from ``least_LE`` to ``gpus``, most valuable experts first, until the slots are used."""
    best_first_LE = np.argsort(-value_LE, axis=1, kind="stable")
    wanted_LE = gpus - np.take_along_axis(least_LE, best_first_LE, axis=1)
    before_LE = np.cumsum(wanted_LE, axis=1) - wanted_LE
    given_LE = np.clip((slots - least_LE.sum(axis=1))[:, None] - before_LE, 0, wanted_LE)
    replicas_LE = np.empty_like(least_LE)
    np.put_along_axis(replicas_LE, best_first_LE, gpus - wanted_LE + given_LE, axis=1)
    return replicas_LE


def replica_family(instance: Instance, *, members: int) -> list[Ints]:
    """Return replica counts from "hottest experts everywhere" to "no replica heavier than necessary".

    Every member first gives each expert the replicas that keep its load per replica below a ceiling, then fills
    the hottest. A high ceiling is best for locality under uniform sources, the lowest one for balance.
    """
    gpus, slots = instance.gpus, instance.slots
    value_LE = _value_of_a_replica(instance)
    even_LE = replicas_by_load(instance.total_WLE, gpus=gpus, slots=slots)
    lowest_L = (instance.total_WLE / even_LE).max(axis=(0, 2))
    highest_L = np.maximum(instance.total_WLE.max(axis=(0, 2)), lowest_L)
    family = []
    for part in np.linspace(1.0, 0.0, members):
        # Geometric steps: the counts change with the ratio of ceilings.
        ceiling_L = lowest_L ** (1 - part) * highest_L**part * (1 + 1e-9)
        least_LE = replicas_below(instance.total_WLE, ceiling_L, gpus=gpus)
        family.append(replicas_filling_hottest(value_LE, least_LE=least_LE, gpus=gpus, slots=slots))
    return family


def _value_of_a_replica(instance: Instance) -> Floats:
    value_LE: Floats = instance.value_LEM.mean(axis=2)
    if value_LE.any():
        return value_LE
    # Nothing is local: take heat instead.
    return np.asarray((instance.total_WLE * instance.weight_WL[:, :, None]).sum(axis=0))


def pack(instance: Instance, replicas_LE: Ints) -> Slots:
    """Pack replicas onto GPUs, heaviest first onto the least loaded; int64 [L, G, P].

    Experts with most replicas go first, single ones last: those fit anywhere, so only the former can be short
    of GPUs, which :func:`_place_left_over` repairs. Load is the largest over windows, a replica's is taken as
    total / replicas. On several nodes an expert with at most one replica per node gets different nodes, one
    with more stays in one node where that holds them: then nearest dispatch splits its load evenly.
    """
    layers, experts = replicas_LE.shape
    gpus, room = instance.gpus, instance.slots_per_gpu
    item_WLE = instance.total_WLE / replicas_LE
    # Step 1: order of packing. [L, E]
    order_LE = np.lexsort((-item_WLE.sum(axis=0), -replicas_LE), axis=-1)
    # Step 2: one expert of every layer at a time.
    loads_WLG = np.zeros((instance.windows, layers, gpus))
    free_LG = np.full((layers, gpus), room)
    slots_LGP = np.full((layers, gpus, room), -1, dtype=np.int64)
    row_L = np.arange(layers)
    for position in range(experts):
        expert_L = order_LE[:, position]
        count_L = replicas_LE[row_L, expert_L]
        item_WL = item_WLE[:, row_L, expert_L]
        key_LG = np.where(free_LG > 0, (loads_WLG + item_WL[:, :, None]).max(axis=0), np.inf)
        if count_L.max() == 1:
            layer_K, gpu_K = row_L, key_LG.argmin(axis=1)
        else:
            layer_K, gpu_K = np.nonzero(_lightest(key_LG, count_L, nodes=instance.nodes))
        slots_LGP[layer_K, gpu_K, room - free_LG[layer_K, gpu_K]] = expert_L[layer_K]
        free_LG[layer_K, gpu_K] -= 1
        loads_WLG[:, layer_K, gpu_K] += item_WL[:, layer_K]
    # Step 3: replicas that found no GPU.
    for layer in np.flatnonzero(free_LG.any(axis=1)).tolist():
        _place_left_over(slots_LGP[layer], replicas_LE[layer])
    return slots_LGP


def _lightest(key_LG: Floats, count_L: Ints, *, nodes: int) -> Bools:
    """Mark the ``count_L`` GPUs of smallest key in every layer (fewer where there is no room); bool [L, G]."""
    layers, gpus = key_LG.shape
    order_LG = np.argsort(key_LG, axis=1, kind="stable")
    if nodes > 1:
        inside = gpus // nodes
        node_LG = order_LG // inside
        # Rank of a GPU within its node, and of its node by that node's lightest GPU.
        same_LGG = node_LG[:, :, None] == node_LG[:, None, :]
        earlier_LG = (same_LGG & np.tri(gpus, k=-1, dtype=bool)).sum(axis=2)
        lightest_node_L1 = node_LG[:, :1]
        spread_LG = earlier_LG
        inside_LG = node_LG != lightest_node_L1
        by_layer_L1 = (count_L > nodes)[:, None] & (count_L <= inside)[:, None]
        again = np.argsort(np.where(by_layer_L1, inside_LG, spread_LG), axis=1, kind="stable")
        order_LG = np.take_along_axis(order_LG, again, axis=1)
    marked_LG = np.zeros((layers, gpus), dtype=np.bool_)
    np.put_along_axis(marked_LG, order_LG, np.arange(gpus) < count_L[:, None], axis=1)
    return np.asarray(marked_LG & np.isfinite(key_LG))


def _place_left_over(slots_GP: Ints, replicas_E: Ints) -> None:
    """Place the missing replicas of one layer, in place.

    A GPU without the expert and with room takes it. If all GPUs with room hold it already, let A be one and B a
    full GPU without it. B holds more experts than A, so at least one that A lacks, even leaving out the expert
    that A has and B lacks: it moves from B to A, and the missing replica takes its place.
    """
    held_E = np.bincount(slots_GP[slots_GP >= 0], minlength=len(replicas_E))
    for expert in np.repeat(np.arange(len(replicas_E)), replicas_E - held_E).tolist():
        has_G = (slots_GP == expert).any(axis=1)
        room_G = (slots_GP < 0).any(axis=1)
        if (room_G & ~has_G).any():
            gpu = int(np.flatnonzero(room_G & ~has_G)[0])
            slots_GP[gpu, int(np.flatnonzero(slots_GP[gpu] < 0)[0])] = expert
            continue
        giver, taker = int(np.flatnonzero(~has_G)[0]), int(np.flatnonzero(room_G)[0])
        slot = int(np.flatnonzero(~np.isin(slots_GP[giver], slots_GP[taker]))[0])
        slots_GP[taker, int(np.flatnonzero(slots_GP[taker] < 0)[0])] = slots_GP[giver, slot]
        slots_GP[giver, slot] = expert


def slots_of_hosts(hosts_LEG: Bools) -> Slots:
    """List the experts of every GPU in ascending order; int64 [L, G, P]. Every GPU must hold equally many."""
    layers, _, gpus = hosts_LEG.shape
    expert = np.nonzero(hosts_LEG.transpose(0, 2, 1))[2]
    return expert.reshape(layers, gpus, -1).astype(np.int64)


def hosts_of_slots(slots_LGP: Slots, *, experts: int) -> Bools:
    """Mark which GPUs hold every expert; bool [L, E, G]."""
    layers, gpus, _ = slots_LGP.shape
    hosts_LEG = np.zeros((layers, experts, gpus), dtype=np.bool_)
    hosts_LEG[np.arange(layers)[:, None, None], slots_LGP, np.arange(gpus)[None, :, None]] = True
    return hosts_LEG
