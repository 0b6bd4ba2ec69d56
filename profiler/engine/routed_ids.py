"""The routed experts in an answer to ``/generate``: decoded, checked and cut into phases.

Source: ``srt/state_capturer/routed_experts.py`` and ``srt/managers/tokenizer_manager.py``, SGLang 0.5.16 and 0.5.23:
``meta_info.routed_experts`` is base64 of little-endian int32 [prompt + output - 1, layers, top-k], absent where it was
not asked for or is switched off. The last output token is never computed on. Layers without experts hold zeros.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.model_shape import ModelShape
from profiler.engine.json_fields import ContractViolation, Fields
from profiler.trace import NO_EXPERT, PHASE_NUMBERS


@dataclass(frozen=True, eq=False)
class RoutedRequest:
    """What one request routed.

    Attributes
    ----------
    ids_LTK : ndarray
        int32 [L, T, K], as the engine names them, -1 where there is none; tokens whose prefix was cached are left
        out, because they were not computed.
    position_T : ndarray
        int32 [T], position in the request.
    phase_T : ndarray
        uint8 [T], by :data:`profiler.trace.PHASE_NUMBERS`.
    dp_rank : int
        Data-parallel rank that served it, -1 where the engine does not say.
    cached_tokens : int
    """

    ids_LTK: npt.NDArray[np.int32]
    position_T: npt.NDArray[np.int32]
    phase_T: npt.NDArray[np.uint8]
    dp_rank: int
    cached_tokens: int


def routed_request(message: object, shape: ModelShape) -> RoutedRequest:
    """Read the answer to one request.

    Raises
    ------
    ContractViolation
        It is none, has no routed experts, or another number of them than it has tokens.
    """
    meta = Fields(Fields(message, "answer").value("meta_info"), "answer.meta_info")
    prompt_tokens = meta.integer("prompt_tokens", minimum=1)
    output_tokens = meta.integer("completion_tokens")
    cached = meta.optional("cached_tokens", meta.integer) or 0
    rows = prompt_tokens + max(output_tokens - 1, 0)
    if cached > prompt_tokens:
        raise ContractViolation(f"answer.meta_info.cached_tokens is {cached} of {prompt_tokens} prompt tokens.")
    ids_TLK = _ids(meta.text("routed_experts"), rows=rows, shape=shape)
    ids_LTK = np.ascontiguousarray(ids_TLK[cached:].transpose(1, 0, 2))
    without_experts = [layer for layer in range(shape.layers) if layer not in set(shape.moe_layers)]
    ids_LTK[without_experts] = -1
    position_T = np.arange(cached, rows, dtype=np.int32)
    is_prompt_T = position_T < prompt_tokens
    dp_rank = meta.optional("dp_rank", meta.integer)
    return RoutedRequest(
        ids_LTK=ids_LTK,
        position_T=position_T,
        phase_T=np.where(is_prompt_T, PHASE_NUMBERS["prefill"], PHASE_NUMBERS["decode"]).astype(np.uint8),
        dp_rank=-1 if dp_rank is None else dp_rank,
        cached_tokens=cached,
    )


def _ids(text: str, *, rows: int, shape: ModelShape) -> npt.NDArray[np.int32]:
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ContractViolation("answer.meta_info.routed_experts is no base64.") from None
    expected_bytes = rows * shape.layers * shape.top_k * 4
    if len(packed) != expected_bytes:
        raise ContractViolation(
            f"answer.meta_info.routed_experts holds {len(packed)} bytes; {rows} tokens x {shape.layers} layers x "
            f"{shape.top_k} experts are {expected_bytes}."
        )
    ids_TLK = np.frombuffer(packed, dtype="<i4").astype(np.int32).reshape(rows, shape.layers, shape.top_k)
    if ids_TLK.size and int(ids_TLK.min()) < -1:
        raise ContractViolation(f"answer.meta_info.routed_experts names expert {int(ids_TLK.min())}.")
    return ids_TLK


def experts_of(
    ids_LTK: npt.NDArray[np.int32], *, map_LP: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.uint16]:
    """Return logical experts, uint16 [L, T, K]; with ``map_LP`` ids are slots of that layout.

    Raises
    ------
    ContractViolation
        An id is beyond the layout's slots.
    """
    there_LTK = ids_LTK >= 0
    if map_LP is None:
        return np.where(there_LTK, ids_LTK, int(NO_EXPERT)).astype(np.uint16)
    largest = int(ids_LTK.max(initial=-1))
    if largest >= map_LP.shape[1]:
        raise ContractViolation(f"the engine names slot {largest}; it has {map_LP.shape[1]} slots.")
    layer_L11 = np.arange(len(ids_LTK))[:, None, None]
    return np.where(there_LTK, map_LP[layer_L11, np.maximum(ids_LTK, 0)], int(NO_EXPERT)).astype(np.uint16)
