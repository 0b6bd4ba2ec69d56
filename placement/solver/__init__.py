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

``quick`` is steps 1 to 3 alone, from numpy: what an engine that balances itself has time for.

Names of this package are looked up when they are first used: OR-Tools' models bring pandas along, which services,
workers and engines that never solve need not have, and ``quick`` must run where there is no OR-Tools.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placement.solver.batches import MapTasks
    from placement.solver.course import Figure, Standing, Watch, unwatched
    from placement.solver.fitting import fit
    from placement.solver.solving import solve, solve_within_shares

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

_MODULES = {
    "batches": ("MapTasks",),
    "course": ("Figure", "Standing", "Watch", "unwatched"),
    "fitting": ("fit",),
    "solving": ("solve", "solve_within_shares"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
