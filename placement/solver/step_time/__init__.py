"""Least predicted MoE-layer time (``Objective.STEP_TIME``).

Layers do not depend on each other here, so each takes the fastest of several plans (for balance, for locality and, with
a token trace, for traffic under several caps, the quickest spread, the running layout) and is improved by exchanges.
Times are the ruler's: with a token trace copies are counted on it, exchanges are proposed by expected and taken by
counted copies.
"""

from placement.solver.step_time.solve import solve_step_time

__all__ = ["solve_step_time"]
