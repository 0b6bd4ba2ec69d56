"""Steps from one layout of a layer to the next: two experts change places, or one takes another's slot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.solver.instance import Bools, Floats, Ints
from placement.solver.traffic.load import LayerLoad
from placement.solver.traffic.worth import Worth


class Step(NamedTuple):
    """Expert ``a`` leaves ``from_gpu`` to ``b``; if ``to_gpu`` is not -1, ``b`` leaves that one to ``a``."""

    a: int
    b: int
    from_gpu: int
    to_gpu: int


class Steps(NamedTuple):
    """Steps with what they seem to change, best first; arrays [X], see :class:`Step`.

    ``copies_X`` is the change in copies per token, ``change_X`` with the price of excess.
    """

    a_X: Ints
    b_X: Ints
    from_X: Ints
    to_X: Ints
    copies_X: Floats
    change_X: Floats

    def step(self, index: int) -> Step:
        return Step(int(self.a_X[index]), int(self.b_X[index]), int(self.from_X[index]), int(self.to_X[index]))


def hosts_after(step: Step, hosts_EG: Bools) -> Bools:
    """Return the hosts of ``a`` and ``b`` after a step, bool [2, G]."""
    hosts_2G = hosts_EG[[step.a, step.b]].copy()
    hosts_2G[0, step.from_gpu], hosts_2G[1, step.from_gpu] = False, True
    if step.to_gpu >= 0:
        hosts_2G[0, step.to_gpu], hosts_2G[1, step.to_gpu] = True, False
    return hosts_2G


def is_possible(step: Step, hosts_EG: Bools) -> bool:
    """Tell whether a step can still be taken after others were: nobody twice on a GPU, nobody gone."""
    leaves = hosts_EG[step.a, step.from_gpu] and not hosts_EG[step.b, step.from_gpu]
    if step.to_gpu < 0:
        return bool(leaves and hosts_EG[step.a].sum() > 1)
    return bool(leaves and hosts_EG[step.b, step.to_gpu] and not hosts_EG[step.a, step.to_gpu])


def likely_steps(worth: Worth, hosts_EG: Bools, load: LayerLoad, *, price: float, most: int) -> Steps:
    """List the steps that seem to improve most: copies per token plus ``price`` for a unit of load above the ceiling.

    What two experts of one step have in common is left out, which makes steps seem better than they are; so are loads
    of third GPUs. Only steps that seem to improve are listed.
    """
    found = [_exchanges(worth, hosts_EG, load, price=price)]
    if np.isfinite(worth.drop_EG).any():
        found.append(_replacements(worth, hosts_EG, load, price=price))
    columns = [np.concatenate(values) for values in zip(*found, strict=True)]
    order = np.argsort(columns[5], kind="stable")[:most]
    order = order[columns[5][order] < 0]
    return Steps(*(column[order] for column in columns))


def _exchanges(worth: Worth, hosts_EG: Bools, load: LayerLoad, *, price: float) -> Steps:
    """Evaluate all exchanges of two experts between two GPUs."""
    gpus = hosts_EG.shape[1]
    lists = [np.flatnonzero(hosts_EG[:, gpu]) for gpu in range(gpus)]
    parts = []
    for one in range(gpus):
        for other in range(one + 1, gpus):
            a_A, b_B = lists[one], lists[other]
            a_A, b_B = a_A[~hosts_EG[a_A, other]], b_B[~hosts_EG[b_B, one]]
            copies_AB = worth.move_EGG[a_A, one, other][:, None] + worth.move_EGG[b_B, other, one]
            leaving_WAB = load.share_WEG[:, a_A, one][:, :, None] - load.share_WEG[:, b_B, other][:, None, :]
            excess_AB = _excess(load, one, -leaving_WAB) + _excess(load, other, leaving_WAB)
            a_X, b_X = np.repeat(a_A, len(b_B)), np.tile(b_B, len(a_A))
            change_X = (copies_AB + price * excess_AB).ravel()
            ones, others = np.full_like(a_X, one), np.full_like(a_X, other)
            parts.append(Steps(a_X, b_X, ones, others, copies_AB.ravel(), change_X))
    return Steps(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _replacements(worth: Worth, hosts_EG: Bools, load: LayerLoad, *, price: float) -> Steps:
    """Evaluate all replacements of one of several replicas by another expert."""
    parts = []
    hosts_E = hosts_EG.sum(axis=1)
    total_WE = load.share_WEG.sum(axis=2)
    for gpu in range(hosts_EG.shape[1]):
        a_A = np.flatnonzero(hosts_EG[:, gpu] & (hosts_E > 1))
        b_B = np.flatnonzero(~hosts_EG[:, gpu])
        if not (len(a_A) and len(b_B)):
            continue
        copies_AB = worth.drop_EG[a_A, gpu][:, None] + worth.add_EG[b_B, gpu]
        coming_WB = total_WE[:, b_B] / (hosts_E[b_B] + 1)
        excess_AB = _excess(load, gpu, coming_WB[:, None, :] - load.share_WEG[:, a_A, gpu][:, :, None])
        a_X, b_X = np.repeat(a_A, len(b_B)), np.tile(b_B, len(a_A))
        change_X = (copies_AB + price * excess_AB).ravel()
        ones, others = np.full_like(a_X, gpu), np.full_like(a_X, -1)
        parts.append(Steps(a_X, b_X, ones, others, copies_AB.ravel(), change_X))
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Steps(none, none, none, none, np.zeros(0), np.zeros(0))
    return Steps(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _excess(load: LayerLoad, gpu: int, more_WAB: Floats) -> Floats:
    """Return by how much a GPU's excess changes with more load; [A, B]."""
    now_W11 = load.load_WG[:, gpu][:, None, None]
    after = np.maximum(now_W11 + more_WAB - load.ceiling, 0.0)
    change_AB: Floats = (after - np.maximum(now_W11 - load.ceiling, 0.0)).sum(axis=0)
    return change_AB
