"""Requests to the replay engine, ``POST /generate``: no model answers them, recorded routing is played for them.

A prompt is given the rows of one recorded request, chosen by the prompt's content, over and over where it is longer.
Texts count as one token for each byte. The request runs with the trace's own ones: it waits, is computed in the same
steps and counted with them. Source of the answer's form: ``srt/managers/tokenizer_manager.py``, SGLang 0.5.23.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.json_fields import ContractViolation, Fields
from profiler.replay.batching import Run
from profiler.replay.traffic import Traffic
from profiler.trace import NO_EXPERT

MAX_PROMPT_TOKENS = 2**17
MAX_NEW_TOKENS = 2**15
DEFAULT_NEW_TOKENS = 128


@dataclass(frozen=True)
class GenerateRequest:
    """One request.

    Attributes
    ----------
    prompt : bytes
        What stands for its content.
    prompt_tokens, new_tokens : int
    return_routed_experts : bool
    dp_rank : int or None
        The data-parallel rank asked for.
    """

    prompt: bytes
    prompt_tokens: int
    new_tokens: int
    return_routed_experts: bool = False
    dp_rank: int | None = None

    @classmethod
    def from_json(cls, message: object, *, gpus: int) -> GenerateRequest:
        """Read a request's body. Raises :class:`ContractViolation`."""
        fields = Fields(message, "request")
        if ("text" in fields) == ("input_ids" in fields):
            raise ContractViolation("request needs either text or input_ids, and not both.")
        if "text" in fields:
            prompt = fields.text("text").encode(errors="surrogatepass")
            prompt_tokens = len(prompt)
        else:
            ids = fields.integers("input_ids")
            prompt, prompt_tokens = repr(ids).encode(), len(ids)
        if not 1 <= prompt_tokens <= MAX_PROMPT_TOKENS:
            raise ContractViolation(f"the prompt has {prompt_tokens} tokens; 1 to {MAX_PROMPT_TOKENS} are served.")
        sampling = Fields(fields.value("sampling_params") if "sampling_params" in fields else {}, "sampling_params")
        wanted = sampling.optional("max_new_tokens", lambda name: sampling.integer(name, minimum=1))
        new_tokens = DEFAULT_NEW_TOKENS if wanted is None else wanted
        if new_tokens > MAX_NEW_TOKENS:
            raise ContractViolation(f"max_new_tokens is {new_tokens}; at most {MAX_NEW_TOKENS} are served.")
        dp_rank = fields.optional("routed_dp_rank", fields.integer)
        if dp_rank is not None and dp_rank >= gpus:
            raise ContractViolation(f"request.routed_dp_rank is {dp_rank}; ranks run from 0 to {gpus - 1}.")
        wants_ids = bool(fields.optional("return_routed_experts", fields.flag))
        return cls(prompt, prompt_tokens, new_tokens, wants_ids, dp_rank)


def run_for(request: GenerateRequest, traffic: Traffic) -> Run:
    """Choose the rows that are played for a request: its last output token is never computed on, as in any engine."""
    chosen = zlib.crc32(request.prompt) % traffic.requests
    first, rows = int(traffic.first_row_Q[chosen]), int(traffic.rows_Q[chosen])
    prompt_rows = int(traffic.prompt_rows_Q[chosen]) or rows
    decode_rows = rows - prompt_rows
    prompt_T = first + np.arange(request.prompt_tokens) % prompt_rows
    steps_T = np.arange(request.new_tokens - 1)
    decode_T = first + (prompt_rows + steps_T % decode_rows if decode_rows else steps_T % prompt_rows)
    return Run(np.concatenate([prompt_T, decode_T]), request.prompt_tokens)


def answer_to(request: GenerateRequest, run: Run, traffic: Traffic, *, home: int, with_ids: bool) -> dict[str, Any]:
    """Return the answer's body; routed experts only where asked for and switched on."""
    meta: dict[str, Any] = {
        "finish_reason": {"type": "length", "length": request.new_tokens},
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": request.new_tokens,
        "cached_tokens": 0,
        "dp_rank": home,
    }
    if with_ids and request.return_routed_experts:
        meta["routed_experts"] = encoded_ids(traffic.experts_LRK[:, run.row_T])
    return {"text": "", "output_ids": [0] * request.new_tokens, "meta_info": meta, "simulated": True}


def encoded_ids(topk_LTK: npt.NDArray[np.uint16]) -> str:
    """Pack ids as SGLang does, base64 of int32 [T, L, K]; layers without experts are zeros there."""
    ids_LTK = topk_LTK.astype(np.int32)
    ids_LTK[topk_LTK == NO_EXPERT] = -1
    ids_LTK[(topk_LTK == NO_EXPERT).all(axis=(1, 2))] = 0
    return base64.b64encode(ids_LTK.transpose(1, 0, 2).astype("<i4").tobytes()).decode()
