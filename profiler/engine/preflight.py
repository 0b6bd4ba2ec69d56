"""Checks before a push: whether this engine can run this layout, found by reading the engine."""

from __future__ import annotations

from dataclasses import dataclass

from placement.errors import LayoutMismatch, SlotCountMismatch
from placement.layout import Layout
from placement.notice import Notice
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.refusals import DISPATCH_FLAG, ERRORS_BY_CODE, STILL_WORKS
from profiler.errors import (
    DispatchCombo,
    DispatchNotSet,
    EngineBusy,
    EngineError,
    NotEnoughMemory,
    PluginMissing,
    PostPushCheckFailed,
)

BY_FILE = ("start the engine with the layout: moeplan export PLAN --out layout.json --print-restart",)
"""What can be done where a push cannot, unless :data:`profiler.engine.refusals.STILL_WORKS` knows better."""


@dataclass(frozen=True)
class Preflight:
    """What was found before a push.

    Attributes
    ----------
    placement : Placement
        The engine's layout, with checksums where the engine can make them.
    notices : tuple of Notice
    """

    placement: Placement
    notices: tuple[Notice, ...]


def preflight(client: EngineClient, layout: Layout) -> Preflight:
    """Read the engine and refuse a push that it could not carry out or would answer wrongly after.

    Raises
    ------
    EngineUnreachable, EngineRefused, EngineAnswerInvalid
        As all of :class:`profiler.engine.client.EngineClient`.
    PluginMissing
        The plugin is not there, cannot push on this engine, or does not reach every rank.
    EngineBusy
        Another push is under way.
    DispatchNotSet, DispatchCombo, LayoutMismatch, SlotCountMismatch, NotEnoughMemory, PostPushCheckFailed
        As :func:`check_dispatch`, :func:`check_shape`, :func:`check_memory`, :func:`check_ranks_agree`.
    ModelWithoutExpertLocation, ScalesLeftBehind, EngineVersionUntested, EngineShapeUnsupported, EngineRebalances
        As :func:`why_not`.
    """
    client.require_alive()
    health = client.health()
    for ability in ("placement", "push"):
        if not health.abilities[ability].works:
            raise why_not(client.url, ability, health.abilities[ability].reason)
    if len(health.ranks) != health.ranks_expected:
        raise PluginMissing(
            f"{client.url}: the plugin answers on {len(health.ranks)} of {health.ranks_expected} ranks; all are needed."
        )
    placement = client.placement(checksums=health.abilities["checksums"].works)
    if placement.push_in_progress:
        raise EngineBusy(f"{client.url}: another push is under way; read the layout when it is done.")
    check_ranks_agree(placement)
    check_shape(placement, layout)
    check_dispatch(placement)
    check_memory(placement)
    notices = list(client.protection_notices())
    if placement.checksums is None:
        reason = health.abilities["checksums"].reason
        notices.append(Notice("WEIGHTS_UNCHECKED", f"slots are not compared after the push: no checksums ({reason})."))
    return Preflight(placement, tuple(notices))


def why_not(url: str, ability: str, reason: str) -> EngineError:
    """Return the error of an ability that does not work: the plugin's reason begins with a code.

    Returns
    -------
    EngineError
        Of the code's own class, with what still works on such an engine; :class:`PluginMissing` without a code.
    """
    code, colon, detail = reason.partition(": ")
    kind = ERRORS_BY_CODE.get(code) if colon else None
    if kind is None:
        return PluginMissing(f"{url}: the plugin cannot do {ability}: {reason.rstrip('.')}.")
    return kind(f"{url}: {detail.rstrip('.')}.", remedies=STILL_WORKS.get(kind, BY_FILE))


def check_memory(placement: Placement) -> None:
    """Refuse a push when a GPU cannot hold the experts of one layer twice, which receiving them takes.

    Raises
    ------
    NotEnoughMemory
    """
    needed = placement.expert_bytes * (placement.slots // placement.ep_size)
    if placement.free_bytes is not None and placement.free_bytes < needed:
        raise NotEnoughMemory(
            f"receiving one layer takes {needed / 2**20:.0f} MiB on every GPU, and one has "
            f"{placement.free_bytes / 2**20:.0f} MiB free; start the engine with a lower --mem-fraction-static.",
            remedies=BY_FILE,
        )


def check_ranks_agree(placement: Placement) -> None:
    """Raise :class:`PostPushCheckFailed` unless every rank runs the layout that the engine reports."""
    if not placement.ranks_agree:
        others = [rank for rank, seen in enumerate(placement.rank_hashes) if seen != placement.layout_hash]
        raise PostPushCheckFailed(
            f"the ranks do not agree on the layout: {len(placement.rank_hashes)} of {placement.ep_size} ranks "
            f"answered, and ranks {others} run another one than {placement.layout_hash[:12]}.",
            remedies=("restart the engine with --init-expert-location",),
        )


def check_dispatch(placement: Placement) -> None:
    """Refuse engines whose dispatch would make a pushed layout answer wrongly.

    Raises
    ------
    DispatchNotSet
        Without a dispatch algorithm SGLang takes expert ids for slots.
    DispatchCombo
        ``static`` or ``lp`` without an all-to-all backend: every rank sees every token but picks replicas by a
        table of its own, so an expert with replicas is counted several times.
    """
    if placement.dispatch is None:
        raise DispatchNotSet(
            "the engine was started without --ep-dispatch-algorithm and takes expert ids for slots, so a pushed layout "
            f"would answer wrongly; start it with {DISPATCH_FLAG}."
        )
    if placement.a2a_backend == "none" and placement.dispatch in ("static", "lp") and _has_replicas(placement):
        raise DispatchCombo(
            f"the engine dispatches {placement.dispatch} with --moe-a2a-backend none and "
            f"{placement.slots - placement.experts} redundant experts: every rank picks replicas by a table of its own "
            f"and answers are wrong; start it with {DISPATCH_FLAG}."
        )


def check_shape(placement: Placement, layout: Layout) -> None:
    """Refuse layouts of another shape than the engine's.

    Raises
    ------
    LayoutMismatch
        Other layers, experts or GPUs.
    SlotCountMismatch
        Another number of slots.
    """
    for name, mine, its in (
        ("decoder layers", layout.layers, placement.layers),
        ("experts", layout.experts, placement.experts),
    ):
        if mine != its:
            raise LayoutMismatch(f"the layout has {mine} {name}, the engine {its}: is it a plan for this model?")
    if layout.slots != placement.slots:
        raise SlotCountMismatch(
            f"the layout has {layout.slots} slots per layer; the engine has {placement.slots} "
            f"({placement.experts} experts + {placement.slots - placement.experts} redundant): plan for "
            f"{placement.slots // placement.ep_size} slots on each of {placement.ep_size} GPUs."
        )
    if layout.gpus != placement.ep_size:
        raise LayoutMismatch(f"the layout is for {layout.gpus} GPUs; the engine has {placement.ep_size} EP ranks.")


def _has_replicas(placement: Placement) -> bool:
    return placement.slots > placement.experts
