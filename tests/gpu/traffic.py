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
    temperature : float
        0: always the likeliest token.
    """

    prompts_S: tuple[Prompts, ...]
    new_tokens: int
    temperature: float = 0.0

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
    answers = _generate(engine, prompts, traffic, source if engine.sources > 1 else None)
    _count(engine, prompts, answers, traffic.new_tokens)


def _count(engine: Engine, prompts: Sequence[Any], answers: Any, new_tokens: int) -> None:
    answers = answers if isinstance(answers, list) else [answers]
    engine.requests += len(prompts)
    whole = [answer for answer in answers if isinstance(answer, dict) and len(answer["output_ids"]) == new_tokens]
    if len(whole) < len(prompts):
        engine.failed += len(prompts) - len(whole)
        engine.failures.append(str(answers)[:300])


def _generate(engine: Engine, prompts: Any, traffic: Traffic, source: int | None, **fields: Any) -> Any:
    sampling = {"temperature": traffic.temperature, "max_new_tokens": traffic.new_tokens, "ignore_eos": True}
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


def routed_tokens(
    engine: Engine, traffic: Traffic, *, layers: int, top_k: int, dense_layers: int = 0, at_once: int = 64
) -> Routed:
    """Send every request on its own and return the experts of all its tokens in the layers that have experts.

    The engine answers for ``dense_layers`` layers before those too.
    """
    shape = (-1, dense_layers + layers, top_k)
    requests = [(prompt, source) for source, prompts in enumerate(traffic.prompts_S) for prompt in prompts]

    def ask(request: tuple[list[int], int]) -> tuple[npt.NDArray[np.int32], int]:
        prompt, source = request
        home = source if engine.sources > 1 else None
        answer = _generate(engine, prompt, traffic, home, return_routed_experts=True)
        _count(engine, [prompt], answer, traffic.new_tokens)
        if isinstance(answer, str):
            return np.zeros((0, layers, top_k), np.int32), source
        return _experts_of(answer).reshape(shape)[:, dense_layers:], source

    with ThreadPoolExecutor(min(at_once, len(requests))) as pool:
        parts = list(pool.map(ask, requests))
    sources = [np.full(len(experts), source, dtype=np.int64) for experts, source in parts]
    return Routed(np.concatenate([experts for experts, _ in parts]), np.concatenate(sources))


def routed_by_source(engine: Engine, traffic: Traffic, *, layers: int, top_k: int, dense_layers: int = 0) -> Routed:
    """Send every source's requests as one batch, all sources at once; return what :func:`routed_tokens` does.

    Raises
    ------
    RuntimeError
        An engine that leaves a request unanswered: a plan from a part of the requests would be of other traffic.
    """

    def ask(source: int) -> npt.NDArray[np.int32]:
        prompts = traffic.prompts_S[source]
        home = source if engine.sources > 1 else None
        answers = _generate(engine, prompts, traffic, home, return_routed_experts=True)
        _count(engine, prompts, answers, traffic.new_tokens)
        if not isinstance(answers, list) or len(answers) != len(prompts):
            raise RuntimeError(f"of source {source}'s {len(prompts)} requests came back: {str(answers)[:300]}")
        return np.concatenate([_experts_of(answer) for answer in answers]).reshape(-1, dense_layers + layers, top_k)

    with ThreadPoolExecutor(len(traffic.prompts_S)) as pool:
        parts = list(pool.map(ask, range(len(traffic.prompts_S))))
    source_T = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Routed(np.concatenate(parts)[:, dense_layers:], source_T)


def _experts_of(answer: dict[str, Any]) -> npt.NDArray[np.int32]:
    """Return the ids that an answer names, flat."""
    return np.frombuffer(base64.b64decode(answer["meta_info"]["routed_experts"]), dtype="<i4")
