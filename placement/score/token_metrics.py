"""The metrics that need a token trace, for any number of layouts in one pass over it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from placement.dispatch import Dispatch, DispatchTable, dispatch_table
from placement.errors import BadOption
from placement.layout import Layout
from placement.metrics import StepOverflow, TokenBasis, TokenMetrics
from placement.score.active import active_experts, decode_steps
from placement.score.copies import CopyCounter, batches, require_match, site_tables
from placement.score.step_overflow import step_overflow
from placement.step_counts import StepCounts, StepTally
from placement.token_sample import TokenSample, take_sample
from placement.tokens import Tokens, TokenStream
from placement.topology import Topology

STEP_BYTES = 2**24
"""Counts of single steps that active experts are worked out from."""

NORMAL_95 = 1.959964
"""97.5 % quantile of the normal distribution."""

FEWEST_REQUESTS = 5
"""Fewer tell too little of how requests differ for an interval."""


def score_tokens(
    layouts: Mapping[str, Layout],
    stream: TokenStream,
    topology: Topology,
    *,
    dispatch: Dispatch,
    sample_tokens: int | None = None,
    seed: int = 0,
    capacity_factor: float = 1.25,
) -> dict[str, TokenMetrics]:
    """Measure layouts on a token trace.

    Parameters
    ----------
    layouts
        By name, from anywhere.
    stream
        Gone through once.
    topology, dispatch
        As in :func:`placement.score.score`. Under ``even`` dispatch nothing is sent: copies are None.
    sample_tokens : int, optional
        Count copies for this many tokens at most: whole requests, drawn uniformly. Intervals then say how far the
        whole recording may be. Without it every token is counted.
    seed : int
        Of the sample.
    capacity_factor : float
        For the overflow of single steps: a GPU's cap is this times the step's mean GPU load.

    Returns
    -------
    dict
        By name; empty where the trace has no tokens.

    Raises
    ------
    BadTokens, SlotCountMismatch, BadOption
        Trace and layout do not fit together, or the sample is smaller than one token.
    """
    tables = {name: dispatch_table(layout, topology, dispatch=dispatch) for name, layout in layouts.items()}
    if sample_tokens is None:
        return _of_all(stream, tables, seed=seed, capacity_factor=capacity_factor)
    if sample_tokens < 1:
        raise BadOption(f"a sample of {sample_tokens} tokens was asked for; it holds 1 at least.")
    sample = take_sample(stream, gpus=topology.gpus, most_tokens=sample_tokens, step_bytes=STEP_BYTES, seed=seed)
    if sample is None:
        return {}
    return {
        name: replace(
            _of_sample(sample, table),
            step_overflow=_step_overflow(sample.steps, table, capacity_factor=capacity_factor),
        )
        for name, table in tables.items()
    }


def _step_overflow(
    steps: StepCounts | None, table: DispatchTable, *, capacity_factor: float
) -> tuple[StepOverflow, ...]:
    return () if steps is None else step_overflow(steps, table, capacity_factor=capacity_factor)


def _of_all(
    stream: TokenStream, tables: Mapping[str, DispatchTable], *, seed: int, capacity_factor: float
) -> dict[str, TokenMetrics]:
    """Count every token, in batches; windows do not matter here."""
    gpus = next(iter(tables.values())).topology.gpus if tables else 1
    counters = {
        name: CopyCounter(table, windows=1) for name, table in tables.items() if table.dispatch is not Dispatch.EVEN
    }
    steps = StepTally(gpus=gpus, most_bytes=STEP_BYTES, seed=seed)
    tokens, any_expert = 0, False
    for batch in batches(stream):
        tokens += batch.tokens
        any_expert |= bool(batch.moe_layers)
        steps.add(batch)
        merged = replace(batch, window_T=np.zeros_like(batch.window_T))
        for counter in counters.values():
            counter.add(merged)
    if not any_expert:
        return {}
    counted = steps.counts()
    found = {}
    for name, table in tables.items():
        copies = counters[name].copies() if name in counters else None
        basis = _basis(counted, tokens=tokens, recorded_tokens=tokens)
        found[name] = TokenMetrics(
            gpus_per_token=None if copies is None else copies.gpus_per_token,
            nodes_per_token=None if copies is None else copies.nodes_per_token,
            active_experts=None if counted is None else active_experts(counted, table),
            token_basis=basis,
            step_overflow=_step_overflow(counted, table, capacity_factor=capacity_factor),
        )
    return found


def _of_sample(sample: TokenSample, table: DispatchTable) -> TokenMetrics:
    """Estimate from whole requests."""
    tokens = sample.tokens
    require_match(tokens, table.layout, table.topology)
    active = None if sample.steps is None else active_experts(sample.steps, table)
    basis = _basis(sample.steps, tokens=tokens.tokens, recorded_tokens=sample.recorded_tokens)
    if table.dispatch is Dispatch.EVEN:
        return TokenMetrics(None, None, active, basis)
    gpus_T, nodes_T, layers_T = _sites_of_tokens(tokens, table)
    _, request_T = np.unique(tokens.request_T, return_inverse=True)
    by_request = [
        np.bincount(request_T, weights=values_T).astype(np.float64) for values_T in (gpus_T, nodes_T, layers_T)
    ]
    gpus_R, nodes_R, layers_R = by_request
    share = tokens.tokens / sample.recorded_tokens
    return TokenMetrics(
        gpus_per_token=float(gpus_R.sum() / layers_R.sum()),
        nodes_per_token=float(nodes_R.sum() / layers_R.sum()),
        active_experts=active,
        token_basis=replace(
            basis,
            gpus_per_token_interval=ratio_interval(gpus_R, layers_R, sampled_share=share),
            nodes_per_token_interval=ratio_interval(nodes_R, layers_R, sampled_share=share),
        ),
    )


def _sites_of_tokens(
    tokens: Tokens, table: DispatchTable
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return each token's remote GPUs and nodes, all layers added up, and the layers that it has experts in."""
    gpus_T, nodes_T, layers_T = (np.zeros(tokens.tokens) for _ in range(3))
    for layer in tokens.moe_layers:
        by_gpu, by_node = site_tables(table, layer)
        experts_TK = tokens.experts_LTK[layer]
        gpus_T += by_gpu.needed(experts_TK, tokens.home_T).sites_T
        if by_node is not None:
            nodes_T += by_node.needed(experts_TK, tokens.home_T).sites_T
        layers_T += (experts_TK < tokens.experts).any(axis=1)
    return gpus_T, nodes_T, layers_T


def ratio_interval(
    part_R: npt.NDArray[np.float64], whole_R: npt.NDArray[np.float64], *, sampled_share: float
) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a ratio of sums, estimated from requests drawn at random.

    Tokens of one request resemble each other, so requests are the units: the linearised variance of a ratio estimator
    under cluster sampling, with the finite population correction (Cochran: Sampling Techniques, 1977, section 6.4), and
    Student's quantile. None where everything was counted, and for fewer than :data:`FEWEST_REQUESTS` requests.
    """
    requests = len(part_R)
    ratio = float(part_R.sum() / whole_R.sum())
    if sampled_share >= 1 or requests < FEWEST_REQUESTS:
        return None
    residual_R = part_R - ratio * whole_R
    spread = requests / (requests - 1) * float((residual_R**2).sum())
    half = _student_95(requests - 1) * math.sqrt((1 - sampled_share) * spread) / float(whole_R.sum())
    return max(0.0, ratio - half), ratio + half


def _student_95(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's distribution, to 0.01 from 4 degrees of freedom on.

    The expansion in powers of 1 / freedom (Abramowitz, Stegun: Handbook of Mathematical Functions, 26.7.5).
    """
    z = NORMAL_95
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / float(freedom) ** power for power, term in enumerate(terms))


def _basis(steps: StepCounts | None, *, tokens: int, recorded_tokens: int) -> TokenBasis:
    return TokenBasis(
        tokens=tokens,
        recorded_tokens=recorded_tokens,
        steps=0 if steps is None else len(decode_steps(steps)),
        recorded_steps=0 if steps is None else steps.recorded_steps,
    )
