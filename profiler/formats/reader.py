"""Reading LAYOUT: a moeplan plan, or the layout file of SGLang, vLLM, TensorRT-LLM or vllm-ascend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from placement.errors import LayoutMismatch
from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.notice import Notice
from placement.plan import FORMAT as PLAN_FORMAT
from profiler.errors import UnknownFormat
from profiler.formats import sglang, tensorrt_llm, vllm, vllm_ascend
from profiler.formats.assignments import ASSIGNMENTS_KEY
from profiler.formats.expected import Expected, build_layout
from profiler.formats.moe_rows import MoeRows, decoder_rows
from profiler.json_file import read_json
from profiler.plan_file import plan_from_document


def read_layout(
    path: Path,
    *,
    gpus: int | None,
    experts: int | None = None,
    layers: int | None = None,
    slots: int | None = None,
    model: ModelShape | None = None,
) -> tuple[Layout, list[Notice]]:
    """Read a layout file and check it against what is known of its engine.

    Parameters
    ----------
    path
        A moeplan plan, SGLang's ``{"physical_to_logical_map": ...}``, a vLLM mapping record, a TensorRT-LLM
        load-balancer file (YAML) or a vllm-ascend expert map, told apart by their keys.
    gpus
        Number of GPUs; may be None where the file says it (plan, vllm-ascend).
    experts
        Number of logical experts. None: taken from the plan, or the largest id + 1 with an ``EXPERTS_INFERRED`` notice.
    layers, slots
        Decoder layers and slots per layer that the layout must have, None for any.
    model
        Turns rows of engines that leave dense layers out into decoder layers.

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
        It is one, for another engine or model.
    PlanVersionUnknown, PlanHashMismatch, BadPlan
        See :func:`profiler.plan_file.plan_from_document`.
    """
    is_yaml = path.suffix in tensorrt_llm.FILE_SUFFIXES
    document = tensorrt_llm.read_yaml(path) if is_yaml else read_json(path)
    experts = experts if experts is not None or model is None else model.experts
    expected = Expected(gpus=gpus, experts=experts, layers=layers, slots=slots)
    if not isinstance(document, dict):
        raise UnknownFormat(f"{path.name} holds no object; a layout is an object with {sglang.MAP_KEY}.")
    if document.get("format") == PLAN_FORMAT:
        return _from_plan(document, expected, name=path.name)
    if sglang.MAP_KEY in document:
        slots_LP, notices = sglang.parse_map(document)
        layout, more = build_layout(slots_LP, expected)
        return layout, [*notices, *more]
    return _from_moe_rows(document, expected, model, name=path.name)


def _from_moe_rows(
    document: dict[str, Any], expected: Expected, model: ModelShape | None, *, name: str
) -> tuple[Layout, list[Notice]]:
    """Read the formats of engines that leave dense layers out."""
    notices: list[Notice] = []
    if vllm_ascend.LAYERS_KEY in document:
        slots_RP, devices, notices = vllm_ascend.parse_map(document, gpus=expected.gpus)
        expected = replace(expected, gpus=devices)
        rows = MoeRows(slots_RP, tuple(range(len(slots_RP))), "MoE layers")
    elif document.get(vllm.TYPE_KEY) == vllm.RECORD_TYPE:
        rows, experts = vllm.parse_map(document)
        if expected.experts not in (None, experts):
            raise LayoutMismatch(f"{name} is for {experts} experts; expected {expected.experts}.")
        expected = replace(expected, experts=experts)
    elif ASSIGNMENTS_KEY in document:
        rows, notices = tensorrt_llm.parse_map(document)
    else:
        raise UnknownFormat(_no_layout(document, name=name))
    # Checked before dense layers get rows: what is wrong is then named by the file's own rows.
    own, inferred = build_layout(rows.slots_RP, replace(expected, layers=None))
    slots_LP, left_out = decoder_rows(rows, experts=own.experts, model=model, layers=expected.layers)
    layout, _ = build_layout(slots_LP, replace(expected, experts=own.experts))
    return layout, [*notices, *inferred, *left_out]


def _from_plan(document: dict[str, Any], expected: Expected, *, name: str) -> tuple[Layout, list[Notice]]:
    layout = plan_from_document(document, name=name).layout
    for word, asked, found in (("GPUs", expected.gpus, layout.gpus), ("experts", expected.experts, layout.experts)):
        if asked is not None and asked != found:
            raise LayoutMismatch(f"{name} is a plan for {found} {word}; expected {asked}.")
    return build_layout(layout.slot_to_expert_LP, replace(expected, gpus=layout.gpus, experts=layout.experts))


def _no_layout(document: dict[str, Any], *, name: str) -> str:
    if "logical_count" in document:
        return f"{name} holds counts (logical_count): it is a recording to plan from, not a layout."
    keys = ", ".join(sorted(map(str, document))[:5]) or "nothing"
    return f"{name} holds {keys}; a layout is a moeplan plan, or an object with {sglang.MAP_KEY}."
