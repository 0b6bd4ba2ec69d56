"""The ruler: what a layout is worth under a demand, or a token trace, and the engine's dispatch.

It judges layouts from anywhere and shares no code with solver, bounds and baselines.
"""

from placement.score.copies import Copies, count_copies
from placement.score.ruler import score
from placement.score.served import loads_WLG
from placement.score.step_overflow import step_overflow
from placement.score.step_time import moe_layer_time
from placement.score.token_metrics import score_tokens
from placement.score.traced_time import traced_moe_layer_time

__all__ = [
    "Copies",
    "count_copies",
    "loads_WLG",
    "moe_layer_time",
    "score",
    "score_tokens",
    "step_overflow",
    "traced_moe_layer_time",
]
