"""Reading LAYOUT: a moeplan plan, SGLang's JSON, or a vllm-ascend expert map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from placement.errors import LayoutMismatch
from placement.layout import Layout
from placement.notice import Notice
from placement.plan import FORMAT as PLAN_FORMAT
from profiler.errors import UnknownFormat
from profiler.formats import sglang, vllm_ascend
from profiler.formats.expected import Expected, build_layout
from profiler.json_file import read_json
from profiler.plan_file import plan_from_document


def read_layout(
    path: Path,
    *,
    gpus: int | None,
    experts: int | None = None,
    layers: int | None = None,
    slots: int | None = None,
) -> tuple[Layout, list[Notice]]:
    """Read a layout file and check it against what is known of its engine.

    Parameters
    ----------
    path
        A moeplan plan, SGLang's ``{"physical_to_logical_map": ...}`` or a vllm-ascend expert map, told apart by
        their keys.
    gpus
        Number of GPUs; may be None where the file says it (plan, vllm-ascend).
    experts
        Number of logical experts. None: taken from the plan, or the largest id + 1 with an ``EXPERTS_INFERRED`` notice.
    layers, slots
        Decoder layers and slots per layer that the layout must have, None for any.

    Returns
    -------
    layout : Layout
    notices : list of Notice
        ``EXTRA_KEYS``, ``FLOAT_IDS``, ``IDS_NOT_IN_ORDER``: repaired. ``EXPERTS_INFERRED``, ``DUPLICATE_ON_DEVICE``:
        to be known.

    Raises
    ------
    InputNotFound, BadJson, UnknownFormat
        The file is none of these.
    BadMapShape, ExpertIdRange, ExpertMissing, DuplicateOnDevice, SlotsNotDivisible
        The layout is not one, naming layer, slot and expert.
    SlotCountMismatch, LayoutMismatch
        It is one, for another engine.
    PlanVersionUnknown, PlanHashMismatch, BadPlan
        See :func:`profiler.plan_file.plan_from_document`.
    """
    document = read_json(path)
    expected = Expected(gpus=gpus, experts=experts, layers=layers, slots=slots)
    if not isinstance(document, dict):
        raise UnknownFormat(f"{path.name} holds no object; a layout is an object with {sglang.MAP_KEY}.")
    if document.get("format") == PLAN_FORMAT:
        return _from_plan(document, expected, name=path.name)
    if sglang.MAP_KEY in document:
        slots_LP, notices = sglang.parse_map(document)
    elif vllm_ascend.LAYERS_KEY in document:
        slots_LP, devices, notices = vllm_ascend.parse_map(document, gpus=gpus)
        expected = replace(expected, gpus=devices)
    else:
        raise UnknownFormat(_no_layout(document, name=path.name))
    layout, more = build_layout(slots_LP, expected)
    return layout, [*notices, *more]


def _from_plan(document: dict[str, Any], expected: Expected, *, name: str) -> tuple[Layout, list[Notice]]:
    layout = plan_from_document(document, name=name).layout
    for word, asked, found in (("GPUs", expected.gpus, layout.gpus), ("experts", expected.experts, layout.experts)):
        if asked is not None and asked != found:
            raise LayoutMismatch(f"{name} is a plan for {found} {word}; expected {asked}.")
    return build_layout(layout.slot_to_expert_LP, replace(expected, gpus=layout.gpus, experts=layout.experts))


def _no_layout(document: dict[str, Any], *, name: str) -> str:
    if "logical_count" in document:
        return f"{name} holds counts (logical_count): it is a recording to plan from, not a layout."
    keys = ", ".join(sorted(document)[:5]) or "nothing"
    return f"{name} holds {keys}; a layout is a moeplan plan, or an object with {sglang.MAP_KEY}."
