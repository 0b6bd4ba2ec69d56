"""What single steps would change, for all of them at once: which are worth working out exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.solver.instance import Bools, Floats


@dataclass(frozen=True, eq=False)
class Worth:
    """Change in copies per token when one expert alone changes its hosts.

    Exact on one node; on several the engine prefers a host in the own node, which is left out here and seen when a
    step is worked out.

    Attributes
    ----------
    move_EGG : ndarray
        float64 [E, G, G], from a host to a GPU that is none; infinite for other pairs.
    drop_EG, add_EG : ndarray
        float64 [E, G], a host less, a host more; infinite where that cannot be.
    """

    move_EGG: Floats
    drop_EG: Floats
    add_EG: Floats


def worth_of_steps(exposed_ESG: Floats, hosts_EG: Bools) -> Worth:
    """Evaluate every change of one host, from what every expert exposes.

    With hosts h (a 0/1 vector) and n of them an expert costs (1 - h)' X h / n, X its exposed rows: every source that is
    no host sends to all hosts alike. Each change of h changes that by a few entries of X h and (1 - h)' X.
    """
    hosts, others = hosts_EG.astype(np.float64), (~hosts_EG).astype(np.float64)
    count_E = hosts.sum(axis=1)
    to_hosts_ES = np.einsum("esg,eg->es", exposed_ESG, hosts)
    from_others_EG = np.einsum("es,esg->eg", others, exposed_ESG)
    total_E = np.einsum("eg,eg->e", from_others_EG, hosts)
    cost_E = total_E / count_E
    # The diagonal of X is 0, so a GPU's own entry never counts.
    less_EG = total_E[:, None] - from_others_EG + to_hosts_ES
    more_EG = total_E[:, None] + from_others_EG - to_hosts_ES
    both_EGG = less_EG[:, :, None] + more_EG[:, None, :] - total_E[:, None, None]
    moved_EGG = (both_EGG + exposed_ESG + exposed_ESG.transpose(0, 2, 1)) / count_E[:, None, None]
    possible_EGG = hosts_EG[:, :, None] & ~hosts_EG[:, None, :]
    several_E1 = count_E[:, None] > 1
    with np.errstate(divide="ignore", invalid="ignore"):
        dropped_EG = less_EG / (count_E[:, None] - 1)
    return Worth(
        move_EGG=np.where(possible_EGG, moved_EGG - cost_E[:, None, None], np.inf),
        drop_EG=np.where(hosts_EG & several_E1, dropped_EG - cost_E[:, None], np.inf),
        add_EG=np.where(~hosts_EG, more_EG / (count_E[:, None] + 1) - cost_E[:, None], np.inf),
    )
