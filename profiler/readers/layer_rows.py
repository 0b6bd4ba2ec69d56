"""Which decoder layer a recorded row belongs to.

Engines number layers in three ways. SGLang has one row per decoder layer, dense ones included (all zero). vLLM has
one row per Mixture-of-Experts layer, in order. TensorRT-LLM labels rows with the decoder layer and leaves dense
layers out. Draft (next-token-prediction) layers may follow at the end. The model's shape tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.errors import BadCountShape, InputsDisagree

MAX_LAYERS = 4096
"""Far above any model; a label beyond it is damage, not a layer."""


@dataclass(frozen=True)
class LayerRows:
    """Where recorded rows go.

    Attributes
    ----------
    layer_of_row : tuple of (int or None)
        Decoder layer of every recorded row, None for rows that are left out.
    layers : int
        Decoder layers, dense ones included.
    notices : tuple of Notice
    """

    layer_of_row: tuple[int | None, ...]
    layers: int
    notices: tuple[Notice, ...] = ()

    def place(self, recorded_R: npt.NDArray[Any], *, axis: int = 0, fill: int = 0) -> npt.NDArray[Any]:
        """Return the array with its row axis turned into decoder layers, ``fill`` where no row was recorded."""
        if self.layer_of_row == tuple(range(self.layers)):
            return recorded_R
        shape = list(recorded_R.shape)
        shape[axis] = self.layers
        placed = np.full(shape, fill, dtype=recorded_R.dtype)
        kept = [row for row, layer in enumerate(self.layer_of_row) if layer is not None]
        where: list[Any] = [slice(None)] * recorded_R.ndim
        where[axis] = [layer for layer in self.layer_of_row if layer is not None]
        placed[tuple(where)] = recorded_R.take(kept, axis=axis)
        return placed


def decoder_layer_rows(
    *,
    name: str,
    row_count: int,
    labels: Sequence[int] | None = None,
    has_traffic: Sequence[bool] | None = None,
    model: ModelShape | None = None,
    numbering: Literal["decoder", "unknown"] = "decoder",
) -> LayerRows:
    """Find the decoder layer of every recorded row.

    Parameters
    ----------
    name : str
        Name of the input, for messages.
    row_count : int
        Recorded rows.
    labels : sequence of int, optional
        The number each row carries, where the format labels rows.
    has_traffic : sequence of bool, optional
        For each row, whether anything was routed in it; rows of dense layers have nothing.
    model : ModelShape, optional
        Without it rows are taken as decoder layers (labels as decoder layer numbers).
    numbering : {"decoder", "unknown"}
        Whether the format is known to have one row per decoder layer. Matters only without a model: rows of
        unknown numbering that all have traffic could be MoE layers counted from 0.

    Returns
    -------
    LayerRows
        With the notices ``LAYERS_ASSUMED`` (the numbering is a guess) and ``DRAFT_LAYERS_LEFT_OUT``.

    Raises
    ------
    BadCountShape
        No rows, or labels that are negative, double or beyond any model.
    InputsDisagree
        The rows fit the model in no way; the message names the row counts that would.
    """
    labels = _checked_labels(name, row_count, labels)
    busy = None if has_traffic is None else [bool(value) for value in has_traffic]
    if model is None:
        return _without_model(name, row_count, labels, busy, numbering)
    if labels is not None and busy is None and row_count < model.layers:
        busy = [True] * row_count  # a format that labels rows and leaves some out leaves out those without traffic
    numbers = range(row_count) if labels is None else labels
    by_decoder = _as_decoder_layers(numbers, busy, model)
    by_moe = _as_moe_layers(numbers, model)
    if labels is None:
        return _choose_unlabelled(name, row_count, by_decoder, by_moe, busy, model)
    chosen = by_decoder if by_decoder is not None else by_moe
    if chosen is None:
        raise InputsDisagree(
            f"{name} has rows labelled {_listed(labels)}; the model has {model.layers} decoder layers, of which "
            f"{_listed(model.moe_layers)} have experts: is it the same model?"
        )
    return _finished(name, chosen, model)


def _checked_labels(name: str, row_count: int, labels: Sequence[int] | None) -> list[int] | None:
    if not 0 < row_count <= MAX_LAYERS:
        raise BadCountShape(f"{name} has {row_count} layers; 1 to {MAX_LAYERS} are read.")
    if labels is None:
        return None
    checked = [int(label) for label in labels]
    if len(checked) != row_count:
        raise BadCountShape(f"{name} has {len(checked)} layer labels for {row_count} rows.")
    for index, label in enumerate(checked):
        if not 0 <= label < MAX_LAYERS:
            raise BadCountShape(f"{name} labels row {index} as layer {label}; layers are 0 to {MAX_LAYERS - 1}.")
        if label in checked[:index]:
            raise BadCountShape(f"{name} has layer {label} twice, in rows {checked.index(label)} and {index}.")
    return checked


def _without_model(
    name: str, row_count: int, labels: list[int] | None, busy: list[bool] | None, numbering: str
) -> LayerRows:
    if labels is not None:
        return LayerRows(tuple(labels), max(labels) + 1)
    notices: tuple[Notice, ...] = ()
    if numbering == "unknown" and (busy is None or all(busy)):
        notices = (
            Notice(
                "LAYERS_ASSUMED",
                f"{name}: its {row_count} rows are taken as decoder layers 0 to {row_count - 1}; if the model has "
                "dense layers too, give its config.json with --model.",
            ),
        )
    return LayerRows(tuple(range(row_count)), row_count, notices)


def _as_decoder_layers(numbers: Sequence[int], busy: list[bool] | None, model: ModelShape) -> list[int | None] | None:
    """Read numbers as decoder layers, if no dense layer then has traffic."""
    if max(numbers) >= model.layers + _draft_rows(model):
        return None
    dense = set(range(model.layers)) - set(model.moe_layers)
    if busy is not None and any(traffic and number in dense for number, traffic in zip(numbers, busy, strict=True)):
        return None
    return [number if number < model.layers else None for number in numbers]


def _as_moe_layers(numbers: Sequence[int], model: ModelShape) -> list[int | None] | None:
    """Read numbers as Mixture-of-Experts layers counted from 0."""
    moe_layers = model.moe_layers
    if max(numbers) >= len(moe_layers) + _draft_rows(model):
        return None
    return [moe_layers[number] if number < len(moe_layers) else None for number in numbers]


def _choose_unlabelled(
    name: str,
    row_count: int,
    by_decoder: list[int | None] | None,
    by_moe: list[int | None] | None,
    busy: list[bool] | None,
    model: ModelShape,
) -> LayerRows:
    moe_count = len(model.moe_layers)
    if row_count < model.layers:
        by_decoder = None
    if row_count < moe_count:
        by_moe = None
    chosen = by_decoder if by_decoder is not None else by_moe
    if chosen is None:
        detail = "rows of dense layers have traffic" if row_count >= model.layers else "no numbering fits"
        raise InputsDisagree(
            f"{name} has {row_count} rows and {detail}; the model needs {model.layers} (all decoder layers) or "
            f"{moe_count} (those with experts), with up to {_draft_rows(model)} draft rows behind them."
        )
    doubtful = busy is None and by_decoder is not None and by_moe is not None and by_decoder != by_moe
    assumed = (
        Notice(
            "LAYERS_ASSUMED",
            f"{name}: its {row_count} rows are taken as decoder layers; they could also be {moe_count} layers with "
            "experts and draft layers.",
        ),
    )
    return _finished(name, chosen, model, assumed if doubtful else ())


def _finished(
    name: str, layer_of_row: list[int | None], model: ModelShape, notices: tuple[Notice, ...] = ()
) -> LayerRows:
    left_out = layer_of_row.count(None)
    if left_out:
        notices += (
            Notice(
                "DRAFT_LAYERS_LEFT_OUT",
                f"{name}: {left_out} of its {len(layer_of_row)} rows lie behind the model's {model.layers} decoder "
                "layers; they are taken as draft layers and left out.",
            ),
        )
    return LayerRows(tuple(layer_of_row), model.layers, notices)


def _draft_rows(model: ModelShape) -> int:
    # A draft model that is loaded apart is not in this config.json, yet the recorder gives it a row.
    return max(model.draft_layers, 1)


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return shown if len(numbers) <= 8 else f"{shown}, ... ({len(numbers)} in all)"
