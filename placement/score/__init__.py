"""The ruler: what a layout is worth under a demand and the engine's dispatch.

It judges layouts from anywhere and shares no code with solver, bounds and baselines.
"""

from placement.score.ruler import score
from placement.score.served import loads_WLG

__all__ = ["loads_WLG", "score"]
