"""Ids of a service's things on the command line, and finding an engine by what people call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.client.connection import ServiceConnection
from api.errors import NotFound
from api.store.identifiers import IDENTIFIER

MOST_ENGINES = 10_000


def is_id(text: str | Path, kind: str) -> bool:
    """Whether a text is the id of something of this kind (``trc``, ``pln``, ...), and no file that is there."""
    name = str(text)
    return bool(IDENTIFIER.fullmatch(name)) and name.startswith(f"{kind}_") and not Path(name).exists()


def engine_named(service: ServiceConnection, name: str) -> dict[str, Any]:
    """Return the engine with this id, name or URL.

    Raises
    ------
    NotFound
        Naming some that there are.
    """
    if is_id(name, "eng"):
        found: dict[str, Any] = service.get(f"/v1/engines/{name}")
        return found
    engines = service.pages("/v1/engines", most=MOST_ENGINES)
    for engine in engines:
        if name == engine["name"] or name.rstrip("/") == engine["url"]:
            return engine
    shown = ", ".join(engine["name"] for engine in engines[:5]) or "none yet"
    raise NotFound(f"the service has no engine {name!r}; there are {shown}. moeplan engines add registers one.")
