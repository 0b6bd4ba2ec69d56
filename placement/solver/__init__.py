"""Where experts should live: ``solve`` for given slots, ``fit`` for the fewest slots that reach a local share,
``solve_within_shares`` for what plans that move less are worth.

How a plan is made (one file per step):

1. ``instance``: the problem's MoE layers as numbers: loads in units of the mean, weights, worth of hosting.
2. ``starts``: layouts from replica counts or from the hosts of the locality bound.
3. ``local_search``: swaps and replacements of replicas, all layers at once (``goal``, ``placing``, ``swaps``,
   ``replicas``); ``batches`` is the seam for whatever runs it.
4. ``generation``: layouts found at several prices for imbalance are columns of a master (``model.columns``), whose
   duals are the next prices; at the end every layer takes one column.
5. ``refine``, ``exact_stage``: CP-SAT on small layers (``model``), for better columns and for proofs.
6. ``hedging``: replica counts that hold on other traffic, for a part of the local share.
7. ``move_pool``, ``move_budget``: plans between the running layout and the one that moves freely, at a price on moves;
   ``staying``, ``sticky``: as few moves as an equally good plan needs.
8. ``proofs``: what is proven; ``notices``: what has to be said.

``course`` follows all that: the best plan so far beside what is proven.

``quick`` is steps 1 to 3 alone, from numpy: what an engine that balances itself has time for. It must import where
OR-Tools is not installed, so this package then offers nothing else.
"""

from __future__ import annotations

try:
    from placement.solver.batches import MapTasks
    from placement.solver.course import Figure, Standing, Watch, unwatched
    from placement.solver.fit import fit
    from placement.solver.solve import solve, solve_within_shares
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "ortools":
        raise

__all__ = [
    "Figure",
    "MapTasks",
    "Standing",
    "Watch",
    "fit",
    "solve",
    "solve_within_shares",
    "unwatched",
]
