"""How the engine picks one replica for a (token, expert) pair: its three rules as shares of traffic.

Read in SGLang 0.5.16 and 0.5.23 (``srt/eplb/expert_location.py``, ``srt/eplb/expert_location_dispatch.py``) and tested
against tables made by those files (``tests/placement/dispatch``).
"""

from placement.dispatch.nearest import SPREAD
from placement.dispatch.rule import Dispatch
from placement.dispatch.table import DispatchTable, dispatch_table

__all__ = ["SPREAD", "Dispatch", "DispatchTable", "dispatch_table"]
