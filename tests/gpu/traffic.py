"""Requests to an engine: batches whose time is taken, and requests that tell what they routed."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from tests.gpu.checkpoints import Checkpoint
from tests.gpu.server import Engine

Prompts = list[list[int]]


@dataclass(frozen=True)
class Traffic:
    """Prompts by the GPU that takes them.

    Attributes
    ----------
    prompts_S : tuple of Prompts
        One entry per source; engines without DP attention have one source.
    new_tokens : int
        Tokens that every request generates.
    """

    prompts_S: tuple[Prompts, ...]
    new_tokens: int

    @property
    def requests(self) -> int:
        return sum(map(len, self.prompts_S))

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompts in self.prompts_S for prompt in prompts)

    @property
    def output_tokens(self) -> int:
        return self.requests * self.new_tokens


def random_traffic(
    *,
    sources: int,
    requests: int,
    prompt_tokens: int,
    new_tokens: int,
    tokens: Sequence[int],
    seed: int,
) -> Traffic:
    """Return ``requests`` random prompts of equal length for every source."""
    draw = random.Random(seed)
    return Traffic(
        tuple(
            [[draw.choice(tokens) for _ in range(prompt_tokens)] for _ in range(requests)] for _source in range(sources)
        ),
        new_tokens,
    )


def domain_traffic(
    model: Checkpoint, *, sources: int, requests: int, prompt_tokens: int, new_tokens: int, at_home: float, seed: int
) -> Traffic:
    """Return prompts of one domain each; source s gets those of domain s, but ``1 - at_home`` of them of any domain."""
    draw = random.Random(seed)
    prompts_S = []
    for source in range(sources):
        prompts = []
        for _ in range(requests):
            domain = source % model.domains if draw.random() < at_home else draw.randrange(model.domains)
            tokens = model.domain_tokens(domain)
            prompts.append([draw.choice(tokens) for _ in range(prompt_tokens)])
        prompts_S.append(prompts)
    return Traffic(tuple(prompts_S), new_tokens)


def send(engine: Engine, traffic: Traffic) -> float:
    """Send everything at once, one batch per source, and return the seconds until the last answer."""
    started_s = time.perf_counter()
    with ThreadPoolExecutor(len(traffic.prompts_S)) as pool:
        sources = range(len(traffic.prompts_S))
        list(pool.map(lambda source: _batch(engine, traffic, source), sources))
    return time.perf_counter() - started_s


def _batch(engine: Engine, traffic: Traffic, source: int) -> None:
    prompts = traffic.prompts_S[source]
    answers = _generate(engine, prompts, traffic.new_tokens, source if engine.sources > 1 else None)
    _count(engine, prompts, answers, traffic.new_tokens)


def _count(engine: Engine, prompts: Sequence[Any], answers: Any, new_tokens: int) -> None:
    answers = answers if isinstance(answers, list) else [answers]
    engine.requests += len(prompts)
    whole = [answer for answer in answers if isinstance(answer, dict) and len(answer["output_ids"]) == new_tokens]
    if len(whole) < len(prompts):
        engine.failed += len(prompts) - len(whole)
        engine.failures.append(str(answers)[:300])


def _generate(engine: Engine, prompts: Any, new_tokens: int, source: int | None, **fields: Any) -> Any:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    home = {} if source is None else {"routed_dp_rank": source}
    try:
        return engine.post("/generate", {"input_ids": prompts, "sampling_params": sampling, **home, **fields})
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Routed:
    """What requests routed by the engine's own account (logical ids).

    Attributes
    ----------
    experts_TLK : ndarray
        int32 [T, L, K].
    source_T : ndarray
        int64 [T], the GPU that took the request.
    """

    experts_TLK: npt.NDArray[np.int32]
    source_T: npt.NDArray[np.int64]


def routed_tokens(engine: Engine, traffic: Traffic, *, layers: int, top_k: int, at_once: int = 64) -> Routed:
    """Send every request on its own and return the experts of all its tokens."""
    requests = [(prompt, source) for source, prompts in enumerate(traffic.prompts_S) for prompt in prompts]

    def ask(request: tuple[list[int], int]) -> tuple[npt.NDArray[np.int32], int]:
        prompt, source = request
        home = source if engine.sources > 1 else None
        answer = _generate(engine, prompt, traffic.new_tokens, home, return_routed_experts=True)
        _count(engine, [prompt], answer, traffic.new_tokens)
        if isinstance(answer, str):
            return np.zeros((0, layers, top_k), np.int32), source
        raw = base64.b64decode(answer["meta_info"]["routed_experts"])
        return np.frombuffer(raw, dtype="<i4").reshape(-1, layers, top_k), source

    with ThreadPoolExecutor(min(at_once, len(requests))) as pool:
        parts = list(pool.map(ask, requests))
    sources = [np.full(len(experts), source, dtype=np.int64) for experts, source in parts]
    return Routed(np.concatenate([experts for experts, _ in parts]), np.concatenate(sources))
