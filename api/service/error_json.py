"""Errors as they are stored and sent."""

from __future__ import annotations

from typing import Any

from placement.errors import CodedError

LAYER_LISTS = ("new_layers", "old_layers")


def error_json(error: CodedError) -> dict[str, Any]:
    """Return an error's code, sentence and remedies, and the layers of a push that stopped half way."""
    lists = {name: getattr(error, name, None) for name in LAYER_LISTS}
    layers = {name: list(value) for name, value in lists.items() if value is not None}
    return {"code": error.code, "detail": error.detail, "remedies": list(error.remedies), **layers}
