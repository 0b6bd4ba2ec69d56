"""Engines: registering them, reading what they are, forgetting them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api.errors import BadRequest, EngineInUse, NameTaken
from api.service import schedules as schedule_service
from api.service.context import Service
from api.service.engine_access import engine_client, state_as_read, with_retries
from api.service.secret_references import checked_reference
from api.service.topology_text import costs_from_text
from api.states import EngineState
from api.store import audit, engines, schedules
from api.store.audit import Actor
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Engine
from placement.dispatch import Dispatch
from placement.errors import CodedError
from placement.topology import Topology, flat_or_nodes, from_cost_matrix
from profiler.engine.contract import Placement, PluginHealth
from profiler.engine.http import EngineHttp
from profiler.errors import EngineError


def register(
    session: Session,
    actor: Actor,
    *,
    name: str,
    url: str,
    key_reference: str | None,
    read_key_reference: str | None,
    labels: dict[str, str],
    costs: list[list[float]] | None,
    topology_text: str | None = None,
) -> Engine:
    """Add an engine; it is read afterwards (:func:`read`).

    ``topology_text`` is what ``nvidia-smi topo -m`` prints, for engines on one machine, instead of ``costs``.

    Raises
    ------
    BadRequest, NameTaken, BadSecretReference, BadOption, BadTopology
        The URL is none, or holds a password; the costs are no square matrix.
    """
    EngineHttp(url, timeout_s=1.0).close()
    if topology_text is not None:
        if costs is not None:
            raise BadRequest("give either costs or topology_text, and not both.")
        costs = costs_from_text(topology_text)
    if costs is not None:
        from_cost_matrix(costs, gpus=len(costs))
    if engines.by_name(session, name) is not None:
        raise NameTaken(f"there is an engine {name!r} already; choose another name.")
    engine = Engine(
        id=new_id("eng"),
        name=name,
        url=url.rstrip("/"),
        key_reference=None if key_reference is None else checked_reference(key_reference),
        read_key_reference=None if read_key_reference is None else checked_reference(read_key_reference),
        labels=labels,
        costs=costs,
        state=EngineState.UNKNOWN,
        warnings=[],
        failures_in_row=0,
        failures=0,
        moved_bytes=0,
        version=1,
        created_at=now(),
    )
    session.add(engine)
    audit.record(session, actor, "engine.registered", engine, url=engine.url)
    return engine


def change(session: Session, actor: Actor, engine: Engine, changes: dict[str, Any]) -> None:
    """Change fields of an engine; what is not named stays. Errors are those of :func:`register`."""
    if "name" in changes and changes["name"] != engine.name and engines.by_name(session, changes["name"]) is not None:
        raise NameTaken(f"there is an engine {changes['name']!r} already; choose another name.")
    if changes.get("costs") is not None:
        from_cost_matrix(changes["costs"], gpus=len(changes["costs"]))
    for field in ("key_reference", "read_key_reference"):
        if changes.get(field) is not None:
            checked_reference(changes[field])
    if "url" in changes:
        EngineHttp(changes["url"], timeout_s=1.0).close()
        engine.failures_in_row, engine.resting_until = 0, None
    for field, value in changes.items():
        setattr(engine, field, value)
    engine.version += 1
    audit.record(session, actor, "engine.changed", engine, fields=sorted(changes))


def remove(session: Session, actor: Actor, engine: Engine, *, why: str) -> None:
    """Forget an engine and its schedules; recordings, plans and history stay. Raises :class:`EngineInUse`."""
    if engines.has_open_jobs(session, engine.id):
        raise EngineInUse(f"a job of the engine {engine.name!r} has not ended; cancel it, or wait.")
    for schedule in schedules.lock_of_engine(session, engine.id):
        schedule_service.remove(session, actor, schedule, why=f"the engine {engine.name!r} was removed")
    engine.removed_at = now()
    engine.version += 1
    audit.record(session, actor, "engine.removed", engine, why=why)


def read(service: Service, engine_id: str) -> dict[str, Any]:
    """Ask an engine what it is and keep the answer; what goes wrong is kept too, not raised.

    Outside of any transaction: an engine may take its time.

    Returns
    -------
    dict
        ``facts``, ``warnings``, ``state`` and ``error`` as they were kept.
    """
    with service.database.reading() as session:
        engine = engines.find(session, engine_id)
    engine.resting_until, engine.failures_in_row = None, 0  # somebody asks: try at once, and everything
    found: dict[str, Any] = {"facts": engine.facts, "warnings": [], "error": None}
    try:
        with engine_client(service, engine) as client:
            health = with_retries(client.health)
            placement = client.placement()
            notices = client.protection_notices()
        found["facts"] = facts_of(health, placement)
        found["warnings"] = [notice.to_dict() for notice in notices]
        found["state"] = state_as_read(found["facts"])
        found["failures_in_row"], found["resting_until"] = 0, None  # whatever failed before: somebody looked
    except CodedError as error:
        unreachable = isinstance(error, EngineError) and error.code in ("ENGINE_UNREACHABLE", "ENGINE_FAILED")
        found["state"] = EngineState.UNREACHABLE if unreachable else EngineState.LIMITED
        found["error"] = {"code": error.code, "detail": error.detail}
    with service.database.writing() as session:
        engine = engines.find(session, engine_id)
        for field, value in found.items():
            setattr(engine, field, value)
        engine.read_at = now()
        engine.version += 1
    return found


def facts_of(health: PluginHealth, placement: Placement) -> dict[str, Any]:
    """Return what is kept of an engine: everything but maps and checksums."""
    shown = replace(placement, checksums=None).to_json()
    for large in ("physical_to_logical_map", "checksums", "rank_hashes"):
        shown.pop(large)
    shown["slots_per_gpu"] = placement.slots // placement.ep_size
    shown["moeplan_version"] = health.moeplan_version
    shown["abilities"] = {name: vars(ability).copy() for name, ability in health.abilities.items()}
    shown["moe_layers"] = list(placement.moe_layers)
    return shown


def dispatch_of(*, dispatch: str | None, a2a_backend: str) -> Dispatch:
    """Return the rule by which an engine picks replicas, from its ``dispatch`` and ``a2a_backend``."""
    if a2a_backend == "none":
        return Dispatch.EVEN
    return Dispatch.NEAREST_STATIC if dispatch == "static" else Dispatch.NEAREST_DYNAMIC


def topology_of(engine: Engine) -> Topology | None:
    """Return where an engine's GPUs are: by the costs that were given, else as it said; None while unknown."""
    if engine.costs is not None:
        return from_cost_matrix(engine.costs, gpus=len(engine.costs))
    if engine.facts is None:
        return None
    topology, _ = flat_or_nodes(gpus=int(engine.facts["ep_size"]), nodes=int(engine.facts["nodes"]))
    return topology
