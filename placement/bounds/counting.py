"""Counting big shares: why no layout keeps every GPU at or below some load.

Words: expert e has w_e tokens in a window and layer; the load that it puts on one of its hosts is a *share*.
P slots hold at least one slot of each expert, so the experts have at most P shares in all. Fix a load T >= the
mean, and k >= 0. Call a share big when it exceeds T / (k + 1).

Pigeonhole. With more than k G big shares some GPU has k + 1 of them, so more than T. (Shares on one GPU
belong to different experts, also where the GPU holds an expert twice.) Hence: if in every layout whose loads
are at most T there are more than k G big shares, no such layout exists.

Fewest big shares. Let ``q_e = ceil((k + 1) w_e / T)`` and ``l_e = ceil(w_e / T)``, both at least 1.

- ``EQUAL``: each host of e takes at least w_e / m_e, for m_e slots. With m_e < q_e all shares of e are big, and
  there are at least l_e of them, each being at most T. With m_e >= q_e ("spread") there may be none if
  q_e <= G; else G hosts with j big shares hold at most ``j T + (G - j) T / (k + 1)``, so
  ``j >= (q_e - G) / k``. Spreading e thus costs q_e - l_e further slots and rids it of at most
  ``l_e - max(0, ceil((q_e - G) / k))`` big shares. Which experts to spread is a knapsack of P - sum l_e slots;
  its linear relaxation (Dantzig 1957, doi:10.1287/opre.5.2.266) is taken.
- ``ANY``: with j big shares of at most T and the rest small, e needs ``max(j, q_e - k j)`` hosts. Every big
  share saves k slots against q_e, the last perhaps fewer, so taking the largest savings first is exact.

For k = 0 both say: e needs l_e slots, and these must fit. Special cases: the heaviest expert on the most
hosts it can have; the t heaviest on the slots left for them; without redundant slots the (k G + 1)-th
heaviest expert k + 1 times, as for scheduling on identical machines (P||Cmax).
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
import numpy.typing as npt

SLACK = 1e-9
"""Ceilings are taken of values lowered by this part, so rounding can only weaken a refutation."""


class ShareRule(Enum):
    """What is known of the shares of an expert; see the module's proof."""

    EQUAL = auto()
    ANY = auto()


SHARE_RULES: dict[ShareRule, str] = {
    ShareRule.EQUAL: "counting big shares per window and layer (pigeonhole), load split equally over slots",
    ShareRule.ANY: "counting big shares per window and layer (pigeonhole), load split in any way over hosts",
}


def no_layout_stays_below(
    load_X: npt.NDArray[np.float64],
    tokens_XE: npt.NDArray[np.float64],
    *,
    gpus: int,
    slots: int,
    rule: ShareRule,
) -> npt.NDArray[np.bool_]:
    """Tell, for every row, whether counting refutes a layout with all GPU loads <= ``load_X``; bool [X]."""
    per_load_XE = tokens_XE / load_X[:, None] * (1 - SLACK)
    fewest_slots_XE = _at_least_one(per_load_XE)
    refuted_X: npt.NDArray[np.bool_] = fewest_slots_XE.sum(axis=1) > slots
    # More than k G shares exist only while k G < P.
    for other_shares in range(1, -(-slots // gpus)):
        spread_slots_XE = _at_least_one(per_load_XE * (other_shares + 1))
        if rule is ShareRule.EQUAL:
            big_X = _fewest_big_equal(
                fewest_slots_XE, spread_slots_XE, other_shares=other_shares, gpus=gpus, slots=slots
            )
        else:
            big_X = _fewest_big_any(spread_slots_XE, other_shares=other_shares, slots=slots)
        refuted_X |= big_X > other_shares * gpus + SLACK
    return refuted_X


def _at_least_one(value_XE: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.maximum(1, np.ceil(value_XE)).astype(np.int64)


def _fewest_big_equal(
    fewest_slots_XE: npt.NDArray[np.int64],
    spread_slots_XE: npt.NDArray[np.int64],
    *,
    other_shares: int,
    gpus: int,
    slots: int,
) -> npt.NDArray[np.float64]:
    """Return a lower bound on the number of big shares under ``EQUAL``, float64 [X]."""
    cost_XE = spread_slots_XE - fewest_slots_XE
    forced_XE = np.maximum(0, -(-(spread_slots_XE - gpus) // other_shares))
    # Experts with cost 0 are spread already and have no big share to lose.
    gain_XE = np.where(cost_XE > 0, np.maximum(0, fewest_slots_XE - forced_XE), 0).astype(np.float64)
    unspread_X = np.where(cost_XE > 0, fewest_slots_XE, 0).sum(axis=1)
    best_first_XE = np.argsort(-gain_XE / np.maximum(cost_XE, 1), axis=1, kind="stable")
    cost_XE = np.take_along_axis(cost_XE, best_first_XE, axis=1)
    gain_XE = np.take_along_axis(gain_XE, best_first_XE, axis=1)
    budget_X = np.maximum(0, slots - fewest_slots_XE.sum(axis=1))
    before_XE = np.cumsum(cost_XE, axis=1) - cost_XE
    part_XE = np.clip((budget_X[:, None] - before_XE) / np.maximum(cost_XE, 1), 0.0, 1.0)
    big_X: npt.NDArray[np.float64] = unspread_X - (gain_XE * part_XE).sum(axis=1)
    return big_X


def _fewest_big_any(
    spread_slots_XE: npt.NDArray[np.int64], *, other_shares: int, slots: int
) -> npt.NDArray[np.float64]:
    """Return the number of big shares needed under ``ANY``, float64 [X]; infinite where no number is enough."""
    missing_X = spread_slots_XE.sum(axis=1) - slots
    full_XE, rest_XE = np.divmod(spread_slots_XE, other_shares + 1)
    full_X = full_XE.sum(axis=1)
    after_full_X = missing_X - other_shares * full_X
    last_XE = -np.sort(-np.maximum(rest_XE - 1, 0), axis=1)
    saved_XE = np.cumsum(last_XE, axis=1)
    last_X = (saved_XE < after_full_X[:, None]).sum(axis=1) + 1.0
    last_X = np.where(saved_XE[:, -1] >= after_full_X, last_X, np.inf)
    big_X: npt.NDArray[np.float64] = np.where(
        after_full_X <= 0, np.ceil(np.maximum(missing_X, 0) / other_shares), full_X + last_X
    )
    return big_X
