"""Telling by reading an engine, and by nothing else, what has become of a push into it."""

from __future__ import annotations

from enum import StrEnum

from placement.layout import Layout
from profiler.engine.contract import Placement


class Found(StrEnum):
    """What an engine is, beside what it was before a push."""

    NEW = "new"
    """Every layer runs the layout that was pushed."""

    OLD = "old"
    """Every layer runs the layout of before."""

    MIXED = "mixed"
    """Some layers run the one, the rest the other: half a push."""

    OTHER = "other"
    """A layer runs neither: somebody else has changed it."""

    PUSHING = "pushing"
    """A push is under way."""

    RESTARTED = "restarted"
    """The engine was started anew and does not run the layout that was pushed."""

    RESHAPED = "reshaped"
    """The engine was started anew with other layers, slots or ranks."""


def recognise(seen: Placement, before: Placement, layout: Layout) -> Found:
    """Compare an engine as it is with what it was before a push, and with what was pushed.

    A restart is recognised by the name of the engine's start where it gives one, and by its count of pushes, which
    begins again at 0. An engine that was started anew with the very layout that was pushed runs what it should, so that
    counts as ``new``.
    """
    if (seen.map_LP.shape, seen.ep_size, seen.experts) != (before.map_LP.shape, before.ep_size, before.experts):
        return Found.RESHAPED
    if seen.push_in_progress:
        return Found.PUSHING
    is_new_L = (seen.map_LP == layout.slot_to_expert_LP).all(axis=1)
    is_old_L = (seen.map_LP == before.map_LP).all(axis=1)
    if is_new_L.all():
        return Found.NEW
    if (is_new_L | is_old_L).all() and not is_old_L.all():
        return Found.MIXED  # an engine that has just started would not run half a push
    if was_restarted(seen, before):
        return Found.RESTARTED
    return Found.OLD if is_old_L.all() else Found.OTHER


def was_restarted(seen: Placement, before: Placement) -> bool:
    """Whether the engine has been started anew between two readings."""
    if seen.boot_id and before.boot_id:
        return seen.boot_id != before.boot_id
    return seen.generation < before.generation


def sentence(found: Found, seen: Placement, *, url: str) -> str:
    """Say what was found."""
    runs = f"layout {seen.layout_hash[:12]}"
    shape = f"{seen.layers} layers of {seen.slots} slots on {seen.ep_size} ranks"
    return {
        Found.NEW: f"{url} runs the layout that was pushed, {runs}.",
        Found.OLD: f"{url} still runs the layout of before, {runs}: nothing has moved.",
        Found.MIXED: f"{url} runs half of the push: some layers are new and the rest are as before ({runs}).",
        Found.OTHER: f"{url} runs {runs}, of which some layers are neither as they were nor as they were pushed: "
        "somebody else has changed them.",
        Found.PUSHING: f"{url} says that a push is under way; at this moment it runs {runs}.",
        Found.RESTARTED: f"{url} was started anew meanwhile and runs {runs}.",
        Found.RESHAPED: f"{url} was started anew meanwhile in another shape, {shape}; it runs {runs}.",
    }[found]
