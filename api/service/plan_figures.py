"""The figures of a plan and of the layout it would replace, read from its file without checking all of it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from api.service import plans as plan_service
from api.service.context import Service
from api.store.models import Plan


@dataclass(frozen=True)
class PlanFigures:
    """What a plan promises, beside what the layout before it does.

    Attributes
    ----------
    scope : str
        ``local_gpu``, or ``local_node`` where the target is about nodes.
    target : float
    planned, before : mapping
        Figures by name, as in ``metrics`` of PLAN.json; ``before`` is those of the running layout, else trivial's.
    bound : float or None
        Proven upper bound on the share of ``scope``.
    before_name : str
    """

    scope: str
    target: float
    planned: dict[str, Any]
    before: dict[str, Any]
    before_name: str
    bound: float | None


def plan_figures(service: Service, plan: Plan) -> PlanFigures:
    """Return the figures of a plan that was made. Raises :class:`WrongState` for another."""
    told = json.loads(plan_service.content(service, plan))
    scope = "local_node" if told["options"]["local_scope"] == "node" else "local_gpu"
    before = told["moves"]["before"]
    return PlanFigures(
        scope=scope,
        target=told["options"]["local_target"],
        planned=told["metrics"],
        before=told["baselines"][before],
        before_name=before,
        bound=told["bound"].get(scope),
    )
