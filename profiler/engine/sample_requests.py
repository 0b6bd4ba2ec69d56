"""The requests of a sample: many under way at a time, each answered, failed or never sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from placement.model_shape import ModelShape
from profiler.engine.client import EngineClient
from profiler.engine.http import MAX_ANSWER_BYTES, without_key
from profiler.engine.json_fields import ContractViolation
from profiler.engine.routed_ids import RoutedRequest, routed_request
from profiler.engine.sample_prompts import Prompt
from profiler.errors import EngineRefused

MAX_FAILURES_IN_A_ROW = 8
"""After so many without a success in between, what is left is not sent."""


@dataclass(frozen=True)
class Failure:
    """A request without a usable answer, and why, in one sentence."""

    reason: str


Outcome = RoutedRequest | Failure | None
"""None for a request that was not sent."""


class _AnswerTooLarge(Exception):
    """The answer is longer than is read."""


class Sampler:
    """Sends prompts to one engine.

    Parameters
    ----------
    client
        Whose address and key are used. Redirects are not followed and proxies are not used.
    shape
    defaults
        Sampling parameters of prompts that do not say otherwise.
    timeout_s
        For a whole request.
    on_progress
        Called with the share done, 0 to 1.
    """

    def __init__(
        self,
        client: EngineClient,
        shape: ModelShape,
        *,
        defaults: Mapping[str, Any],
        timeout_s: float,
        on_progress: Callable[[float], None],
    ) -> None:
        self._url, self._key = client.url, client.read_key
        self._shape, self._defaults = shape, defaults
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._failures_in_a_row = 0
        self._done = 0

    async def send(self, prompts: Sequence[Prompt], *, concurrency: int) -> list[Outcome]:
        """Send all prompts, ``concurrency`` at a time, and return what became of each.

        Raises
        ------
        EngineRefused
            The engine wants another key.
        """
        outcomes: list[Outcome] = [None] * len(prompts)
        waiting = iter(enumerate(prompts))
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        async with httpx.AsyncClient(
            base_url=self._url,
            follow_redirects=False,
            trust_env=False,
            limits=limits,
            timeout=self._timeout_s,
            headers={"accept-encoding": "identity", **({} if self._key is None else _bearer(self._key))},
        ) as http:
            workers = min(concurrency, len(prompts))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(self._work(http, waiting, outcomes))
            except* EngineRefused as refused:
                raise refused.exceptions[0] from None
        return outcomes

    async def _work(
        self, http: httpx.AsyncClient, waiting: Iterator[tuple[int, Prompt]], outcomes: list[Outcome]
    ) -> None:
        for number, prompt in waiting:
            if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                return
            outcome = outcomes[number] = await self._sampled(http, prompt)
            self._failures_in_a_row = self._failures_in_a_row + 1 if isinstance(outcome, Failure) else 0
            self._done += 1
            self._on_progress(self._done / len(outcomes))

    async def _sampled(self, http: httpx.AsyncClient, prompt: Prompt) -> RoutedRequest | Failure:
        try:
            async with asyncio.timeout(self._timeout_s):
                status, body = await self._post(http, self._body(prompt))
        except TimeoutError:
            return Failure(f"no whole answer within {self._timeout_s:g} s.")
        except _AnswerTooLarge:
            return Failure(f"the answer is larger than {MAX_ANSWER_BYTES} bytes.")
        except httpx.HTTPError as error:
            return Failure(f"the connection failed ({self._shown(str(error) or type(error).__name__)}).")
        if status in (401, 403):
            raise EngineRefused(f"{self._url} wants another key for requests: its API key where it has one.")
        if status != 200:
            return Failure(f"status {status}: {self._shown(body.decode(errors='replace'))}.")
        try:
            return routed_request(json.loads(body), self._shape)
        except ContractViolation as violation:
            return Failure(self._shown(violation.detail))
        except (ValueError, RecursionError):
            return Failure("the answer is not JSON.")

    async def _post(self, http: httpx.AsyncClient, body: Mapping[str, Any]) -> tuple[int, bytes]:
        async with http.stream("POST", "/generate", json=body) as response:
            whole = bytearray()
            async for piece in response.aiter_raw():
                whole += piece
                if len(whole) > MAX_ANSWER_BYTES:
                    raise _AnswerTooLarge
            return response.status_code, bytes(whole)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        body: dict[str, Any] = {
            "sampling_params": {**self._defaults, **prompt.sampling_params},
            "return_routed_experts": True,
        }
        if prompt.text is not None:
            body["text"] = prompt.text
        else:
            body["input_ids"] = list(prompt.input_ids or ())
        if prompt.routed_dp_rank is not None:
            body["routed_dp_rank"] = prompt.routed_dp_rank
        return body

    def _shown(self, text: str) -> str:
        return without_key(text, self._key)


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
