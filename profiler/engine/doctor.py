"""What of moeplan works on an engine, what does not, and the flag or command that changes it. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from placement.layout import Layout
from profiler.engine.access import Access, probe_access
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement, PluginHealth
from profiler.engine.doctor_checks import Check, Findings, all_checks, check_layout
from profiler.engine.http import EngineHttp
from profiler.engine.server_facts import ServerFacts
from profiler.engine.time_limits import RANKS_S
from profiler.errors import EngineError, EngineRefused


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was found.

    Attributes
    ----------
    url : str
    access : Access
    facts : ServerFacts or None
        None where the engine does not let us read its arguments.
    health : PluginHealth or None
        None without the plugin.
    placement : Placement or None
        None where the plugin does not answer.
    architectures : tuple of str
    checks : tuple of Check
    """

    url: str
    access: Access
    facts: ServerFacts | None
    health: PluginHealth | None
    placement: Placement | None
    architectures: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def simulated(self) -> bool:
        """Whether this is the replay engine."""
        sources = (self.facts, self.health)
        return any(source.simulated for source in sources if source is not None)

    @property
    def ready(self) -> bool:
        """Whether traffic can be recorded by some means, plans pushed into the running engine, and it runs the layout
        that was asked about, if one was."""
        works = {check.name for check in self.checks if check.state in ("works", "limited")}
        as_wanted = "layout" in works or all(check.name != "layout" for check in self.checks)
        return as_wanted and "push" in works and not works.isdisjoint({"capture", "capture_dumps", "sample"})

    def to_dict(self) -> dict[str, Any]:
        """Return everything for ``--json``."""
        return {
            "url": self.url,
            "ready": self.ready,
            "simulated": self.simulated,
            "access": vars(self.access).copy(),
            "server": None if self.facts is None else self.facts.to_dict(),
            "architectures": list(self.architectures),
            "plugin": None if self.health is None else self.health.to_json(),
            "layout_hash": None if self.placement is None else self.placement.layout_hash,
            "checks": [vars(check).copy() for check in self.checks],
        }


def examine(
    url: str,
    *,
    key: str | None = None,
    read_key: str | None = None,
    layout: Callable[[int | None], Layout] | None = None,
    timeout_s: float | None = None,
) -> Diagnosis:
    """Find out what works on an engine.

    Parameters
    ----------
    url, key, read_key, timeout_s
        As of :class:`profiler.engine.client.EngineClient`.
    layout
        Returns the layout that the engine shall run, given its number of EP ranks (None where unknown); then one
        more check says whether it does.

    Raises
    ------
    EngineUnreachable, NotAnEngine
        Nothing answers, it does not serve, or it is no SGLang.
    BadOption
        The URL or a key is none.
    """
    with EngineClient(url, key, read_key=read_key, timeout_s=timeout_s) as client:
        with closing(EngineHttp(url, timeout_s=timeout_s or RANKS_S)) as http:
            client.require_alive()
            access = probe_access(http, key=key, read_key=read_key)
        facts = _read_facts(client)
        architectures = client.architectures() if facts is not None else ()
        health, trouble = _read_health(client, access)
        placement = _read_placement(client, health)
    findings = Findings(access, facts, health, trouble, placement, architectures)
    checks = tuple(all_checks(findings))
    if layout is not None:
        checks += (check_layout(findings, layout(_ep_size(facts, placement))),)
    return Diagnosis(client.url, access, facts, health, placement, architectures, checks)


def _ep_size(facts: ServerFacts | None, placement: Placement | None) -> int | None:
    known = placement or facts
    return None if known is None else known.ep_size


def _read_facts(client: EngineClient) -> ServerFacts | None:
    try:
        return client.facts()
    except EngineRefused:  # said by the check of access
        return None


def _read_health(client: EngineClient, access: Access) -> tuple[PluginHealth | None, str]:
    """Return the plugin's health, or why there is none."""
    if access.plugin_route is False:
        return None, ""
    try:
        return client.health(), ""
    except EngineError as error:
        return None, error.detail


def _read_placement(client: EngineClient, health: PluginHealth | None) -> Placement | None:
    if health is None or not health.abilities["placement"].works:
        return None
    try:
        return client.placement()
    except EngineError:  # what it means is said by the check of the plugin
        return None
