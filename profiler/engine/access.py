"""Which of the keys at hand an engine takes, on its two levels of access.

SGLang (``srt/utils/auth.py``): routes that read take the API key where there is one; routes that record or change take
the admin key where there is one, else the API key. A route that is not there is one that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from profiler.engine.http import EngineHttp

Level = Literal["open", "key accepted", "key refused", "key needed"]
"""``key refused``: the one given was not taken; ``key needed``: none was given, and one is wanted."""

READ_ROUTES = ("/server_info", "/get_server_info")
PLUGIN_ROUTE = "/moeplan/health"
STOCK_ADMIN_ROUTE = "/hicache/storage-backend"
"""The one route of SGLang on its admin level that only reads."""

NOT_THERE = (404, 405)
REFUSED = (401, 403)


@dataclass(frozen=True)
class Access:
    """What an engine lets us do.

    Attributes
    ----------
    read, admin : Level
        Routes that read (arguments, requests), and routes that record or change.
    plugin_route : bool or None
        Whether the plugin's routes are there; None where that cannot be told without a key.
    """

    read: Level
    admin: Level
    plugin_route: bool | None


def probe_access(http: EngineHttp, *, key: str | None, read_key: str | None) -> Access:
    """Ask harmless routes with and without the keys.

    Raises
    ------
    EngineUnreachable, EngineAnswerInvalid
    """
    read = _level(lambda sent: _status(http, READ_ROUTES, sent), read_key or key)
    plugin_route = _plugin_route(http, key, read_key)
    admin_route = (STOCK_ADMIN_ROUTE,) if plugin_route is False else (PLUGIN_ROUTE,)
    admin = _level(lambda sent: _status(http, admin_route, sent), key)
    return Access(read=read, admin=admin, plugin_route=plugin_route)


def _status(http: EngineHttp, routes: Sequence[str], key: str | None) -> int:
    """Return the status of the first route that is there, else of the last one."""
    for route in routes:
        status = http.request("GET", route, key=key).status
        if status not in NOT_THERE:
            break
    return status


def _level(ask: Callable[[str | None], int], key: str | None) -> Level:
    if ask(None) not in REFUSED:
        return "open"
    if key is None:
        return "key needed"
    return "key refused" if ask(key) in REFUSED else "key accepted"


def _plugin_route(http: EngineHttp, key: str | None, read_key: str | None) -> bool | None:
    """Tell a plugin whose key is wanted from a route that is not there: the latter asks for the other key."""
    statuses = [http.request("GET", PLUGIN_ROUTE, key=sent).status for sent in _distinct(None, read_key, key)]
    if any(status in NOT_THERE for status in statuses):
        return False
    return True if any(status not in REFUSED for status in statuses) else None


def _distinct(*keys: str | None) -> Iterator[str | None]:
    yield from dict.fromkeys(keys)
