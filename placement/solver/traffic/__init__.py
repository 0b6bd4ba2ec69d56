"""Fewest copies per token (``Objective.TRAFFIC``).

1. ``layer_tokens``: the tokens of a layer. ``copies``: what they cost under hosts that change, exactly. ``serving`` is
   where a replica's tokens come from, ``load`` what GPUs compute.
2. ``worth``, ``steps``, ``descent``: all single steps evaluated at once, the best worked out exactly and taken.
3. ``communities``: a start from the co-activation graph.
4. ``tasks``: a layer as a task for whoever maps tasks. ``plan``: columns from several starts and ceilings, and the
   choice of one per layer under the cap. ``nodes``: which GPUs share a node.
5. ``solve``: from plans for locality to plans for traffic.
"""

from __future__ import annotations

from placement.solver.traffic.solve import TrafficEffort, copies_count, for_locality, solve_traffic

__all__ = ["TrafficEffort", "copies_count", "for_locality", "solve_traffic"]
