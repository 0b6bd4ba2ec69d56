"""Sampling token traces by requests: the engine answers prompts with the experts it chose for each token."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import BadOption
from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.json_fields import ContractViolation
from profiler.engine.routed_ids import RoutedRequest, experts_of
from profiler.engine.sample_prompts import Prompt
from profiler.engine.sample_requests import Failure, Sampler
from profiler.engine.sample_shape import model_shape, running_placement
from profiler.engine.server_facts import ServerFacts
from profiler.errors import RoutedExpertsDisabled, SampleFailed
from profiler.trace import TokenChunk, TraceHeader

ROUTED_EXPERTS_FLAG = "--enable-return-routed-experts"
DEFAULT_NEW_TOKENS = 64
DEFAULT_CONCURRENCY = 16
REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True, eq=False)
class SampleResult:
    """What was sampled: a token trace (a :class:`profiler.trace.TraceReader`).

    Attributes
    ----------
    name : str
        The engine's URL without its scheme.
    header : TraceHeader
    pieces : tuple of TokenChunk
        One for each request that was answered, in the order of the prompts.
    notices : tuple of Notice
    failed : int
        Requests without a usable answer.
    simulated : bool
        True when the engine is a replay.
    """

    name: str
    header: TraceHeader
    pieces: tuple[TokenChunk, ...]
    notices: tuple[Notice, ...]
    failed: int
    simulated: bool

    @property
    def tokens(self) -> int:
        return sum(len(chunk.request_id_T) for chunk in self.pieces)

    @property
    def content_hash(self) -> str:
        """SHA-256 over the requests' experts, positions and sources."""
        digest = hashlib.sha256()
        for chunk in self.pieces:
            digest.update(f"{chunk.topk_LTK.shape} {chunk.source_T[:1]} {chunk.position_T[:1]}\n".encode())
            digest.update(chunk.topk_LTK.astype("<u2").tobytes())
        return digest.hexdigest()

    def chunks(self) -> Iterator[TokenChunk]:
        return iter(self.pieces)


def sample(
    client: EngineClient,
    prompts: Sequence[Prompt],
    *,
    model: ModelShape | None = None,
    sampling_params: Mapping[str, Any] | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    timeout_s: float = REQUEST_TIMEOUT_S,
    on_progress: Callable[[float], None] = lambda share: None,
) -> SampleResult:
    """Send prompts to an engine and collect the experts of every token it computed for them.

    Parameters
    ----------
    client
    prompts
    model
        Shape of the engine's model; None asks the engine (see :mod:`profiler.engine.sample_shape`).
    sampling_params
        Of every prompt, where its own do not say otherwise; by default :data:`DEFAULT_NEW_TOKENS` new tokens.
    concurrency
        Requests under way at a time.
    timeout_s
        For a whole request.
    on_progress
        Called with the share done, 0 to 1.

    Raises
    ------
    RoutedExpertsDisabled, ModelUnknown, BadOption
        Nothing was sent.
    EngineRefused
        Another key is wanted.
    SampleFailed
        No request gave a usable answer; or the ids are slots of a layout that is unknown.
    EngineError
        As all of :class:`profiler.engine.client.EngineClient`.
    """
    if not prompts:
        raise BadOption("there is no prompt to send.")
    if concurrency < 1:
        raise BadOption(f"concurrency is {concurrency}; it must be at least 1.")
    if not 0 < timeout_s < float("inf"):
        raise BadOption(f"timeout_s is {timeout_s}; it must be above 0 and finite.")
    facts = client.facts()
    if not facts.returns_routed_experts:
        raise RoutedExpertsDisabled(
            f"{client.url} does not return the experts of requests; start it with {ROUTED_EXPERTS_FLAG}."
        )
    before = running_placement(client)
    shape = model_shape(client, facts, before, model=model)
    defaults = {"max_new_tokens": DEFAULT_NEW_TOKENS, **(sampling_params or {})}
    sampler = Sampler(client, shape, defaults=defaults, timeout_s=timeout_s, on_progress=on_progress)
    answers = asyncio.run(sampler.send(prompts, concurrency=concurrency))
    routed = {number: answer for number, answer in enumerate(answers) if isinstance(answer, RoutedRequest)}
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    if not routed:
        raise SampleFailed(f"none of {len(prompts)} requests to {client.url} could be sampled: {failures[0].reason}")
    experts_by_request, id_notices = _logical(routed, shape, before, client)
    domains = tuple(dict.fromkeys(prompt.domain for prompt in prompts if prompt.domain))
    pieces = tuple(
        _chunk(number, routed[number], experts_LTK, facts, _index(domains, prompts[number].domain))
        for number, experts_LTK in experts_by_request.items()
    )
    return SampleResult(
        name=client.url.split("://", 1)[-1],
        header=_header(facts, shape, domains),
        pieces=pieces,
        notices=(*id_notices, *_notices(routed, failures, asked=len(prompts))),
        failed=len(prompts) - len(routed),
        simulated=facts.simulated,
    )


def _logical(
    routed: Mapping[int, RoutedRequest], shape: ModelShape, before: Placement | None, client: EngineClient
) -> tuple[dict[int, npt.NDArray[np.uint16]], list[Notice]]:
    """Return logical experts by request. Ids beyond the experts are slots, as builds of SGLang up to 0.5.16 give them
    where a fused kernel maps them before they are kept; they are read through the running layout or not at all."""
    largest = max(int(answer.ids_LTK.max(initial=-1)) for answer in routed.values())
    if largest < shape.experts:
        return {number: experts_of(answer.ids_LTK) for number, answer in routed.items()}, []
    said = f"{client.url} names expert {largest} of {shape.experts}, so its ids are slots"
    if before is None:
        raise SampleFailed(f"{said}, and without moeplan's plugin the layout that turns them into experts is unknown.")
    after = running_placement(client)
    if after is None or after.generation != before.generation or after.layout_hash != before.layout_hash:
        raise SampleFailed(f"{said}, and the layout changed meanwhile; sample again without a push in between.")
    try:
        experts = {number: experts_of(answer.ids_LTK, map_LP=before.map_LP) for number, answer in routed.items()}
    except ContractViolation as violation:
        raise SampleFailed(f"{said}, but {violation.detail} Is --model the engine's model?") from None
    return experts, [Notice("IDS_WERE_SLOTS", f"{said}; they were read through layout {before.layout_hash[:12]}.")]


def _header(facts: ServerFacts, shape: ModelShape, domains: tuple[str, ...]) -> TraceHeader:
    return TraceHeader(
        kind="tokens",
        layers=shape.layers,
        experts=shape.experts,
        top_k=shape.top_k,
        source_ranks=facts.source_ranks,
        engine="moeplan-replay" if facts.simulated else "sglang",
        engine_version=facts.version,
        model=facts.model or shape.name,
        domain_names=domains,
    )


def _chunk(
    number: int, answer: RoutedRequest, experts_LTK: npt.NDArray[np.uint16], facts: ServerFacts, domain: int
) -> TokenChunk:
    tokens = len(answer.position_T)
    source = answer.dp_rank if facts.source_ranks is not None and answer.dp_rank < facts.source_ranks else -1
    return TokenChunk(
        topk_LTK=experts_LTK,
        request_id_T=np.full(tokens, number, dtype=np.int64),
        position_T=answer.position_T,
        source_T=np.full(tokens, source, dtype=np.int32),
        domain_T=np.full(tokens, domain, dtype=np.int32),
        phase_T=answer.phase_T,
        step_T=np.full(tokens, -1, dtype=np.int64),
    )


def _index(domains: tuple[str, ...], domain: str) -> int:
    return domains.index(domain) if domain else -1


def _notices(routed: Mapping[int, RoutedRequest], failures: Sequence[Failure], *, asked: int) -> Iterator[Notice]:
    if failures:
        detail = f"{len(failures)} of {asked} requests gave nothing to use; the first: {failures[0].reason}"
        yield Notice("REQUESTS_FAILED", detail)
    skipped = asked - len(routed) - len(failures)
    if skipped:
        yield Notice("SAMPLING_STOPPED", f"{skipped} of {asked} requests were not sent after too many had failed.")
    cached = sum(answer.cached_tokens for answer in routed.values())
    if cached:
        detail = f"{cached} prompt tokens were in the engine's prefix cache and are left out: they were not computed."
        yield Notice("CACHED_TOKENS", detail)
