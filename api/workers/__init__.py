"""Who runs the search of a plan: this process, processes beside it, or the machines of a Ray cluster.

``placement`` knows only something like the built-in ``map``. :class:`FanOut` is one: it keeps tasks on their way,
brings lost ones home and watches the time limit. Of a crew, which :func:`open_workers` gives, it needs no more than
``submit`` of :mod:`concurrent.futures`: :mod:`~api.workers.processes` and :mod:`~api.workers.ray_cluster` have it.
"""

from __future__ import annotations

from api.workers.choice import Workers, open_workers, parse_workers
from api.workers.fan_out import Crew, FanOut

__all__ = ["Crew", "FanOut", "Workers", "open_workers", "parse_workers"]
