"""Rollouts of a service: bringing a plan into an engine, and taking it back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from api.client.connection import ServiceConnection
from api.client.events import finished
from api.errors import WrongState

Progress = Callable[[float], None]

TAKEN_BACK = ("applied", "failed", "unconfirmed")
"""States of rollouts that can be taken back."""

MOST_LOOKED_AT = 1000
"""Rollouts of an engine, the newest, that one to take back is looked for in."""


def push_there(
    service: ServiceConnection, body: Mapping[str, Any], *, progress: Progress | None = None
) -> dict[str, Any]:
    """Bring an approved plan into its engine; return the rollout as it ended.

    Parameters
    ----------
    body
        ``plan_id``, and what else ``POST /v1/rollouts`` takes; fields that are None are not sent.
    """
    given = {name: value for name, value in body.items() if value is not None}
    asked = service.post("/v1/rollouts", given, once=secrets.token_hex(16)).json
    return _ended(service, asked, progress=progress)


def roll_back_there(
    service: ServiceConnection, *, engine_id: str, to: str | None, reason: str, progress: Progress | None = None
) -> dict[str, Any]:
    """Put back the layout that an engine's last rollout replaced, or an earlier one by its hash.

    Raises
    ------
    WrongState
        No rollout of the engine can be taken back to there.
    """
    rollouts = service.pages("/v1/rollouts", {"engine_id": engine_id}, most=MOST_LOOKED_AT)
    for rollout in rollouts:
        replaced = rollout["from_hash"]
        if rollout["state"] in TAKEN_BACK and replaced is not None and (to is None or replaced.startswith(to)):
            path = f"/v1/rollouts/{rollout['id']}/rollback"
            asked = service.post(path, {"reason": reason}, once=secrets.token_hex(16)).json
            return _ended(service, asked, progress=progress)
    which = "" if to is None else f" to a layout {to[:12]}"
    raise WrongState(f"no rollout of this engine can be taken back{which}; moeplan rollouts list shows them.")


def _ended(service: ServiceConnection, asked: Mapping[str, Any], *, progress: Progress | None) -> dict[str, Any]:
    finished(service, asked["job_id"], progress=progress)
    rollout: dict[str, Any] = service.get(f"/v1/rollouts/{asked['id']}")
    return rollout
