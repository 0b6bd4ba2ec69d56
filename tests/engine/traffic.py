"""Requests to an engine under test, and what they routed."""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from tests.engine.engine_server import EngineServer

NEW_TOKENS = 8


def prompts(count: int, *, seed: int) -> list[list[int]]:
    """Return prompts of 12 to 60 random byte tokens."""
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(draw.randrange(12, 60))] for _ in range(count)]


EIGHT_PROMPTS = prompts(8, seed=7)


def generate(
    server: EngineServer,
    prompt: Sequence[int],
    *,
    new_tokens: int = NEW_TOKENS,
    stop: Sequence[int] = (),
    **fields: Any,
) -> dict[str, Any]:
    """Send one greedy request, which ends after so many tokens or at one of the tokens of ``stop``."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": not stop, "stop_token_ids": list(stop)}
    response = server.post("/generate", {"input_ids": list(prompt), "sampling_params": sampling, **fields})
    response.raise_for_status()
    return dict(response.json())


@dataclass
class Load:
    """What came of requests that kept running.

    Attributes
    ----------
    answered : int
    failed : list of str
    """

    answered: int = 0
    failed: list[str] = field(default_factory=list)


@contextmanager
def under_load(server: EngineServer, *, clients: int = 4) -> Iterator[Load]:
    """Keep requests running while the block runs."""
    load, ended = Load(), threading.Event()

    def keep_asking(prompt: list[int]) -> None:
        while not ended.is_set():
            try:
                generate(server, prompt)
                load.answered += 1
            except httpx.HTTPError as error:
                load.failed.append(repr(error))

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(keep_asking, prompt) for prompt in prompts(clients, seed=70)]
        try:
            yield load
        finally:
            ended.set()
            for one in running:
                one.result()


@dataclass(frozen=True)
class GreedyRun:
    """Eight greedy answers.

    Attributes
    ----------
    tokens : list of list of int
    logprobs : list of float
        Of all prompt tokens.
    """

    tokens: list[list[int]]
    logprobs: list[float]

    def equal_outputs(self, other: GreedyRun) -> int:
        return sum(mine == theirs for mine, theirs in zip(self.tokens, other.tokens, strict=True))

    def largest_logprob_difference(self, other: GreedyRun) -> float:
        return max(abs(mine - theirs) for mine, theirs in zip(self.logprobs, other.logprobs, strict=True))


def greedy_run(server: EngineServer) -> GreedyRun:
    """Answer the eight prompts one after another, nothing cached: repeated runs are equal to the last bit."""
    answers = []
    for prompt in EIGHT_PROMPTS:
        server.flush_cache()
        answers.append(generate(server, prompt, return_logprob=True, logprob_start_len=0))
    return _greedy(answers)


def greedy_at_once(server: EngineServer) -> GreedyRun:
    """Answer the eight prompts together, which is faster, in batches as they happen to form."""
    server.flush_cache()
    with ThreadPoolExecutor(len(EIGHT_PROMPTS)) as pool:
        return _greedy(
            list(
                pool.map(
                    lambda prompt: generate(server, prompt, return_logprob=True, logprob_start_len=0), EIGHT_PROMPTS
                )
            )
        )


def _greedy(answers: list[dict[str, Any]]) -> GreedyRun:
    logprobs = [
        float(entry[0])
        for answer in answers
        for entry in answer["meta_info"]["input_token_logprobs"]
        if entry[0] is not None
    ]
    return GreedyRun([answer["output_ids"] for answer in answers], logprobs)


@dataclass(frozen=True)
class Routed:
    """What requests routed by the engine's own account.

    Attributes
    ----------
    tokens : dict of str to int
        By phase.
    counts_LSE : dict of str to ndarray
        int64 [L, S, E], by phase.
    """

    tokens: dict[str, int]
    counts_LSE: dict[str, npt.NDArray[np.int64]]


def ends_for(server: EngineServer, requests: Sequence[tuple[list[int], int]]) -> list[dict[str, Any]]:
    """Return for every request how it ends: every other one after 3 to 8 tokens, the rest at a token of their own."""
    ends: list[dict[str, Any]] = []
    for index, (prompt, _rank) in enumerate(requests):
        if index % 2:
            ends.append({"stop": generate(server, prompt)["output_ids"][2 + index % 4 :][:1]})
        else:
            ends.append({"new_tokens": 3 + index % 6})
    return ends


def routed_by_requests(
    server: EngineServer,
    requests: Sequence[tuple[list[int], int]],
    *,
    layers: int,
    experts: int,
    top_k: int,
    sources: int,
    ends: Sequence[dict[str, Any]] | None = None,
) -> Routed:
    """Send requests (prompt, data-parallel rank) at once and count their ``routed_experts`` by source and phase."""
    server.flush_cache()
    fields = [{"routed_dp_rank": rank} if sources > 1 else {} for _prompt, rank in requests]
    if ends is not None:
        fields = [field | end for field, end in zip(fields, ends, strict=True)]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(
            pool.map(
                lambda pair: generate(server, pair[0][0], return_routed_experts=True, **pair[1]),
                zip(requests, fields, strict=True),
            )
        )
    counts = {phase: np.zeros((layers, sources, experts), dtype=np.int64) for phase in ("prefill", "decode")}
    tokens = {"prefill": 0, "decode": 0}
    for (prompt, rank), answer in zip(requests, answers, strict=True):
        meta = answer["meta_info"]
        assert meta["cached_tokens"] == 0
        if sources > 1:
            assert meta["dp_rank"] == rank
        ids_TLK = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype="<i4").reshape(-1, layers, top_k)
        for phase, part_TLK in (("prefill", ids_TLK[: len(prompt)]), ("decode", ids_TLK[len(prompt) :])):
            tokens[phase] += len(part_TLK)
            for layer in range(layers):
                counts[phase][layer, rank] += np.bincount(part_TLK[:, layer].ravel(), minlength=experts)
    return Routed(tokens, counts)
