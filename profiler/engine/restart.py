"""A layout by file instead of a push: the flags of a rolling restart, from the plan and from the engine's arguments.

Source: ``srt/eplb/expert_location.py`` and ``srt/server_args.py``, SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.dispatch import Dispatch
from placement.errors import LayoutMismatch
from placement.layout import Layout
from placement.notice import Notice
from profiler.engine.models import without_expert_location
from profiler.engine.server_facts import ServerFacts
from profiler.errors import ModelWithoutExpertLocation


@dataclass(frozen=True)
class Flag:
    """One server argument of the restart.

    Attributes
    ----------
    name : str
    value : str or None
        None for a flag that must not be there.
    now : str or None
        What the engine runs with; None where no engine was asked.
    """

    name: str
    value: str | None
    now: str | None = None

    @property
    def changes(self) -> bool:
        """Whether the engine must be started otherwise than it was; unknown counts as yes."""
        return self.now is None or self.now != (self.value or "not set")

    @property
    def text(self) -> str:
        return f"without {self.name}" if self.value is None else f"{self.name} {shlex.quote(self.value)}"


@dataclass(frozen=True)
class Restart:
    """How an engine is started with a layout.

    Attributes
    ----------
    file : Path
        The layout's file, under its name on the engine's hosts.
    flags : tuple of Flag
    notices : tuple of Notice
    kept : Path or None
        Where the layout lies that ``file`` held before.
    """

    file: Path
    flags: tuple[Flag, ...]
    notices: tuple[Notice, ...]
    kept: Path | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        """What to do, a sentence each, for engines behind a router."""
        kept = "" if self.kept is None else f": what lay there is {self.kept} now"
        removed = "".join(f", {flag.text}" for flag in self.flags if flag.value is None)
        return (
            f"Copy the file to {self.file} on every host of every engine; keep the one that runs now, to go back "
            f"to{kept}.",
            "Take one engine out of the router, wait until it is idle, and stop it.",
            f"Start it as before, with: {self.command_line}{removed}",
            "Check it: moeplan doctor --engine URL --layout PLAN",
            "Put it back into the router and go on with the next.",
            f"If it does not start (ENGINE_START_FAILED), start it {self.way_back}, and read its log before the next "
            "attempt: shared memory that an ended engine left behind, or too little of the host's, stops a start too.",
        )

    @property
    def way_back(self) -> str:
        """How to start the engine as it was, as far as that is known."""
        known = {flag.name: flag.now for flag in self.flags if flag.now is not None}
        if self.kept is not None:
            known["--init-expert-location"] = str(self.kept)
        if "--init-expert-location" not in known:
            return "with the file and the flags that it ran with before"
        flags = [f"{name} {shlex.quote(value)}" for name, value in known.items() if value not in ("set", "not set")]
        left_out = [f", without {name}" for name, value in known.items() if value == "not set"]
        switches = [name for name, value in known.items() if value == "set"]
        rest = "" if len(known) > 1 else " and the other flags of before"
        return f"as it was, with: {' '.join(flags + switches)}{''.join(left_out)}{rest}"

    @property
    def command_line(self) -> str:
        """The flags to set, as they are typed."""
        return " ".join(flag.text for flag in self.flags if flag.value is not None)

    def to_dict(self) -> dict[str, Any]:
        flags = [{**vars(flag), "changes": flag.changes} for flag in self.flags]
        kept = None if self.kept is None else str(self.kept)
        return {"command_line": self.command_line, "flags": flags, "steps": list(self.steps), "kept": kept}


def restart_with(
    layout: Layout,
    file: Path,
    *,
    dispatch: Dispatch,
    nodes: int,
    facts: ServerFacts | None = None,
    architectures: Sequence[str] = (),
) -> Restart:
    """Work out the flags that start an engine with a layout.

    Parameters
    ----------
    layout
    file
        The layout's file; it must lie under this name on every host of the engine.
    dispatch
        What the layout was planned for.
    nodes
        Nodes it was planned for.
    facts, architectures
        Of the engine that is to be restarted, where one was asked.

    Raises
    ------
    ModelWithoutExpertLocation
        SGLang cannot start this model with a layout.
    LayoutMismatch
        The engine has another number of EP ranks than the layout GPUs.
    """
    lacking = without_expert_location(architectures)
    if lacking is not None:
        raise ModelWithoutExpertLocation(
            f"SGLang has no expert location for {lacking}, so it starts with no layout: the plan and its file can be "
            "made and compared, and that is all."
        )
    if facts is not None and facts.ep_size != layout.gpus:
        raise LayoutMismatch(
            f"the layout is for {layout.gpus} GPUs; the engine has {facts.ep_size} EP ranks: plan for --gpus "
            f"{facts.ep_size}."
        )
    wanted = {
        "--ep-size": str(layout.gpus),
        "--ep-num-redundant-experts": str(layout.slots - layout.experts),
        "--ep-dispatch-algorithm": "static" if dispatch is Dispatch.NEAREST_STATIC else "dynamic",
        "--init-expert-location": str(file),
    }
    now = {} if facts is None else _running(facts)
    flags = [Flag(name, value, now.get(name)) for name, value in wanted.items()]
    if facts is not None and facts.rebalances:
        flags.append(Flag("--enable-eplb", None, "set"))
    return Restart(file, tuple(flags), tuple(_notices(facts, file, dispatch=dispatch, nodes=nodes)))


def _running(facts: ServerFacts) -> dict[str, str]:
    return {
        "--ep-size": str(facts.ep_size),
        "--ep-num-redundant-experts": str(facts.redundant_experts),
        "--ep-dispatch-algorithm": facts.dispatch or "not set",
        "--init-expert-location": facts.init_expert_location,
    }


def _notices(facts: ServerFacts | None, file: Path, *, dispatch: Dispatch, nodes: int) -> Iterator[Notice]:
    if facts is None:
        return
    if facts.init_expert_location == str(file):
        yield Notice(
            "LAYOUT_FILE_IN_USE",
            f"the engine was started with a file of this very name, {file}: keep it under another name on its hosts.",
        )
    if facts.nodes != nodes:
        yield Notice("NODES_DIFFER", f"the plan is for {nodes} nodes, the engine is on {facts.nodes}.")
    if facts.a2a_backend == "none" and dispatch is not Dispatch.EVEN:
        yield Notice(
            "NO_ALL_TO_ALL",
            "the engine has no all-to-all backend: every GPU sees every token, so only the plan's balance counts.",
        )
