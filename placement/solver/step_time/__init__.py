"""Least predicted MoE-layer time (``Objective.STEP_TIME``).

Layers do not depend on each other here, so each takes the fastest of several plans (for balance, for locality under
several caps, the running layout) and is improved by exchanges that are judged by the exact predicted time.
"""

from placement.solver.step_time.solve import solve_step_time

__all__ = ["solve_step_time"]
