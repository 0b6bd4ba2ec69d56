"""Rows of layouts in engines that number layers their own way.

SGLang and moeplan have a row per decoder layer. vLLM and vllm-ascend count Mixture-of-Experts layers from 0;
TensorRT-LLM labels rows with decoder layers and leaves dense ones out. The model's ``config.json`` tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.errors import LayoutMismatch
from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.errors import ExportNeedsModel

Numbering = Literal["decoder layers", "MoE layers"]


@dataclass(frozen=True, eq=False)
class MoeRows:
    """Rows of the layers that have experts.

    Attributes
    ----------
    slots_RP : ndarray
        int32 [R, P], the expert in every slot.
    layer_of_row : tuple of int
        The number that each row carries.
    numbering : {"decoder layers", "MoE layers"}
        What the numbers count.
    """

    slots_RP: npt.NDArray[np.int32]
    layer_of_row: tuple[int, ...]
    numbering: Numbering


def moe_rows(layout: Layout, model: ModelShape | None, *, format: str) -> MoeRows:
    """Take the rows of a layout's MoE layers, numbered by decoder layer.

    Parameters
    ----------
    layout
        A row per decoder layer, or per MoE layer where it was planned from a recording that counts those.
    model
    format
        For messages.

    Raises
    ------
    ExportNeedsModel
        Without a model nobody can tell dense layers from layers without traffic.
    LayoutMismatch
        The layout is for another model.
    """
    if model is None:
        raise ExportNeedsModel(f"{format} has rows for layers with experts only; say which these are with --model.")
    if layout.experts != model.experts:
        raise LayoutMismatch(f"the layout has {layout.experts} experts per layer, the model {model.experts}.")
    if layout.layers == model.layers:
        return MoeRows(layout.slot_to_expert_LP[list(model.moe_layers)], model.moe_layers, "decoder layers")
    if layout.layers == len(model.moe_layers):
        return MoeRows(layout.slot_to_expert_LP, model.moe_layers, "decoder layers")
    raise LayoutMismatch(
        f"the layout has {layout.layers} rows; the model has {model.layers} decoder layers, {len(model.moe_layers)} of "
        "them with experts."
    )


def decoder_rows(
    rows: MoeRows, *, experts: int, model: ModelShape | None, layers: int | None
) -> tuple[npt.NDArray[np.int32], list[Notice]]:
    """Give every decoder layer a row, int32 [L, P]; layers that the file leaves out get the trivial one.

    Parameters
    ----------
    rows
        As read from a file.
    experts
        Of the trivial row: slot p holds expert p modulo experts.
    model
        Without it rows that count MoE layers stay as they are.
    layers
        Decoder layers that are expected, None for unknown.

    Raises
    ------
    LayoutMismatch
        Naming the layers that the model or the caller does not have.
    """
    labels: Sequence[int] = rows.layer_of_row
    if rows.numbering == "MoE layers":
        if model is None:
            if layers is not None and layers != len(labels):
                raise LayoutMismatch(
                    f"the layout has {len(labels)} rows, one per layer with experts; {layers} decoder layers are "
                    "expected: give the model's config.json with --model."
                )
            return rows.slots_RP, []
        if len(labels) != len(model.moe_layers):
            raise LayoutMismatch(
                f"the layout has {len(labels)} rows, the model {len(model.moe_layers)} layers with experts."
            )
        labels = [model.moe_layers[label] for label in labels]
    count = model.layers if model is not None else layers if layers is not None else max(labels) + 1
    if max(labels) >= count:
        raise LayoutMismatch(f"the layout names layer {max(labels)}; decoder layers are 0 to {count - 1}.")
    if model is not None and set(labels) != set(model.moe_layers):
        odd = min(set(labels) ^ set(model.moe_layers))
        said = "has no experts in the model" if odd in labels else "has experts, but no row"
        raise LayoutMismatch(f"layer {odd} {said}: is the layout for another model?")
    slots_LP = np.tile(np.arange(rows.slots_RP.shape[1], dtype=np.int32) % experts, (count, 1))
    slots_LP[list(labels)] = rows.slots_RP
    left_out = count - len(labels)
    if not left_out or model is not None:
        return slots_LP, []
    detail = f"{left_out} of {count} decoder layers are not in the file: taken as layers without experts."
    return slots_LP, [Notice("LAYERS_LEFT_OUT", detail)]
