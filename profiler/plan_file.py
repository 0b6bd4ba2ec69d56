"""``PLAN.json``: a plan as a file.

Version 1. One top-level key per line and one layer per line of the map, so that two plans can be compared line by
line. The schema of the parts is read off the value types of ``placement``: what they hold is what a file may hold,
nothing less and nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placement.errors import BadPlan
from placement.layout import Layout
from placement.notice import Notice
from placement.plan import FORMAT, FORMAT_VERSION, Plan
from placement.plan_header import PlanInput, PlannedModel, PlanOptions
from placement.plan_metrics import Moves, PlanMetrics
from placement.solution import Bound, Status
from placement.topology import Topology
from profiler.errors import PlanHashMismatch, PlanVersionUnknown
from profiler.files import unicode_only, write_text
from profiler.json_file import read_json

Tokens = Annotated[int, Field(ge=0, le=2**62)]
ExpertId = Annotated[int, Field(ge=0, le=2**31 - 1)]
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Topology(BaseModel):
    model_config = STRICT

    gpus: int
    nodes: int


class _Bound(BaseModel):
    model_config = STRICT

    local_gpu: float | None
    local_node: float | None
    imbalance: float | None
    gpus_per_token: float | None = None
    moe_layer_s: float | None = None
    proven: bool
    relaxation: dict[str, str]

    def value(self) -> Bound:
        given = self.model_dump(exclude={"proven"})
        return Bound(**given)


class _Document(BaseModel):
    """Every key of the file; standard-library dataclasses inside are read with the same strictness."""

    model_config = STRICT

    format: Literal["moeplan-plan"]
    format_version: Literal[1]
    moeplan_version: str
    model: PlannedModel
    topology: _Topology
    inputs: tuple[PlanInput, ...]
    options: PlanOptions
    status: Status
    slots_per_gpu: int
    layout_hash: str
    sources: str
    metrics: PlanMetrics
    bound: _Bound
    gap: float | None
    baselines: dict[str, PlanMetrics]
    moves: Moves
    warnings: tuple[Notice, ...]
    heat: list[list[Tokens]]
    load_before: list[list[Tokens]]
    load_after: list[list[Tokens]]
    physical_to_logical_map: list[list[ExpertId]]


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan; the file appears whole or not at all.

    Raises
    ------
    OutputNotWritable
    """
    write_text(path, render_plan(plan))


def render_plan(plan: Plan) -> str:
    """Return the file's text: the same plan gives the same text, byte for byte."""
    lines = [f"{json.dumps(key)}: {_render(key, unicode_only(value))}" for key, value in plan.to_dict().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _render(key: str, value: Any) -> str:
    if key != "physical_to_logical_map":
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in value) + "\n]"


def read_plan(path: Path) -> Plan:
    """Read a plan back, checking every field, the sums and the layout's hash.

    Raises
    ------
    InputNotFound, UnreadableDump, BadJson
        See :func:`profiler.json_file.read_json`.
    PlanVersionUnknown, BadPlan, PlanHashMismatch, BadMapShape, ExpertIdRange, ExpertMissing
        See :func:`plan_from_document`.
    """
    return plan_from_document(read_json(path), name=path.name)


def plan_from_document(document: Any, *, name: str) -> Plan:
    """Build a plan from parsed JSON; ``name`` is what messages call it.

    Raises
    ------
    PlanVersionUnknown
        A newer moeplan wrote it.
    BadPlan
        A field is missing, unknown or of another type (named by its JSON path), or two parts contradict each other.
    BadMapShape, ExpertIdRange, ExpertMissing
        The map is no layout.
    PlanHashMismatch
        The map is not the one that was planned.
    """
    _check_version(document, name=name)
    try:
        # Strict reading from JSON text is the mode in which a list may become a tuple, and nothing else changes type.
        parsed = _Document.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise BadPlan(_sentence(error, name=name)) from error
    topology = Topology(parsed.topology.gpus, parsed.topology.nodes)
    heat_LE = _table(parsed.heat, width=parsed.model.experts, path="$.heat", name=name)
    layout = _layout(parsed, name=name)
    plan = Plan(
        moeplan_version=parsed.moeplan_version,
        model=parsed.model,
        topology=topology,
        inputs=parsed.inputs,
        options=parsed.options,
        status=parsed.status,
        layout=layout,
        metrics=parsed.metrics,
        bound=parsed.bound.value(),
        baselines=parsed.baselines,
        moves=parsed.moves,
        heat_LE=heat_LE,
        load_before_LG=_table(parsed.load_before, width=topology.gpus, path="$.load_before", name=name),
        load_after_LG=_table(parsed.load_after, width=topology.gpus, path="$.load_after", name=name),
        notices=parsed.warnings,
    )
    _check_derived(plan, parsed, name=name)
    return plan


def _check_version(document: Any, *, name: str) -> None:
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise BadPlan(f"{name} is no moeplan plan: it has no {json.dumps('format')}: {json.dumps(FORMAT)}.")
    version = document.get("format_version")
    if isinstance(version, int) and not isinstance(version, bool) and version > FORMAT_VERSION:
        raise PlanVersionUnknown(
            f"{name} has plan format {version} (moeplan {document.get('moeplan_version')}); this moeplan reads up to "
            f"{FORMAT_VERSION}: use the version that wrote it."
        )


def _sentence(error: ValidationError, *, name: str) -> str:
    first = error.errors(include_url=False)[0]
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] in ("missing", "unexpected_keyword_argument", "extra_forbidden", "missing_argument"):
        return f"{name}, {path}: {message}."
    found = json.dumps(first["input"], default=repr)
    return f"{name}, {path}: {message}, found {found if len(found) <= 60 else found[:57] + '...'}."


def _table(rows: list[list[int]], *, width: int, path: str, name: str) -> npt.NDArray[np.int64]:
    for index, row in enumerate(rows):
        if len(row) != width:
            raise BadPlan(f"{name}, {path}[{index}] has {len(row)} entries; it must have {width}.")
    return np.asarray(rows, dtype=np.int64).reshape(len(rows), width)


def _layout(parsed: _Document, *, name: str) -> Layout:
    rows = parsed.physical_to_logical_map
    width = parsed.slots_per_gpu * parsed.topology.gpus
    slots_LP = _table(rows, width=width, path="$.physical_to_logical_map", name=name)
    layout = Layout.of_any_width(slots_LP, gpus=parsed.topology.gpus, experts=parsed.model.experts)
    if layout.hash != parsed.layout_hash:
        raise PlanHashMismatch(
            f"{name} says its layout has the hash {parsed.layout_hash[:12]}..., but its map has {layout.hash[:12]}...: "
            "the map was changed after planning. Plan again, or give the map alone as a layout."
        )
    return layout


def _check_derived(plan: Plan, parsed: _Document, *, name: str) -> None:
    """Refuse a file whose derived values are not those of its parts."""
    written = {
        "sources": (parsed.sources, plan.metrics.sources),
        "bound.proven": (parsed.bound.proven, bool(plan.bound.relaxation)),
        "gap": (parsed.gap, plan.gap),
    }
    for path, (found, right) in written.items():
        if found != right:
            raise BadPlan(f"{name}, $.{path} is {json.dumps(found)}; by the plan's other parts it is {right!r}.")
