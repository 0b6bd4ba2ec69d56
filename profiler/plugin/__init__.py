"""The engine-side plugin: placement, push and demand of a live SGLang over its own HTTP server.

SGLang loads it through the entry-point group ``sglang.srt.plugins`` in every process of the engine. It imports only
the standard library, numpy, torch and SGLang (with what SGLang's HTTP server itself needs), and of this project only
modules with the same limits (the balancer's also networkx, which torch brings), so ``pip install --no-deps moeplan``
is enough on an engine host.

======================  ===========================================================================
``hooks``               what is hooked into SGLang, and whether each hook is in place
``routes``              HTTP process: the routes, one push and one recording at a time
``carrier``             HTTP process: sends an order to every rank and reads their answers
``ranks``               scheduler processes: carries orders out, the same on every rank
``rank_view``           what a rank knows of itself, the same on every tested SGLang version
``placement_state``     map, sizes, memory and free space of a rank
``apply``               a push on one rank: checked as a whole, then applied layer by layer
``checksums``           fingerprints of every per-expert tensor, per slot
``own_rows``            which rows of a batch are a rank's own tokens
``demand_recorder``     routed tokens of a rank in windows, kept in a bounded ring
``graph_tap``           routing inside captured CUDA graphs
``step_log``            routed ids of a few steps, counted together once the engine has used them
``balancer``            drop-in mode: moeplan's layouts for SGLang's own balancer (``--enable-eplb``)
``demand_merge``        HTTP process: windows of all ranks become one answer
``versions``            what is known of which SGLang version
``backport_0516``       replica choice without an all-to-all backend, which SGLang 0.5.16 lacks
======================  ===========================================================================

No failure in here ever stops the engine: a part that cannot work says so in ``GET /moeplan/health``.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def register() -> None:
    """Entry point: hook the plugin into this process of the engine."""
    try:
        from profiler.plugin.hooks import EnginePlugin

        EnginePlugin().install()
    except Exception:
        logger.exception("moeplan's plugin could not be installed; the engine runs without it")
