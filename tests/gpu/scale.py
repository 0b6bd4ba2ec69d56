"""How much of everything a run does: on GPUs, and in a rehearsal on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of a run.

    Attributes
    ----------
    hot, domains, deep : str
        Checkpoints: with hot experts, with experts of domains, and with as many layers as a served model.
    redundant : int
        Redundant slots.
    loop_streams, loop_tokens, loop_steps : int
        Requests at a time and their tokens while the whole loop runs, and steps to capture.
    gap_streams, gap_tokens : int
        Requests at a time and their tokens while gaps are measured; long, so that no request begins meanwhile.
    gap_rounds : int
        Pushes of each kind under load.
    between_s : float
        Seconds between two of them.
    recording_sessions, recording_pairs : int
        Sets of requests under which recording is switched on and off, and pairs of intervals in each.
    recording_s : float
        Length of an interval.
    prefill_pairs : int
        Pairs of recording off and on during prefill.
    decode, prefill : tuple of int
        Requests, prompt tokens and new tokens of a throughput measurement, over all sources.
    step : tuple of int
        Requests per source, prompt tokens and new tokens while steps are timed and pairs counted.
    layout_rounds, step_repeats : int
    sized_redundants : tuple of int
        Redundant slots of the engines whose cache is sized, on the checkpoint with hot experts.
    sized_fraction : float
        Their ``--mem-fraction-static``: small, so that weights count beside the cache.
    """

    hot: str
    domains: str
    deep: str
    redundant: int
    loop_streams: int
    loop_tokens: int
    loop_steps: int
    gap_streams: int
    gap_tokens: int
    gap_rounds: int
    between_s: float
    recording_sessions: int
    recording_pairs: int
    recording_s: float
    prefill_pairs: int
    decode: tuple[int, int, int]
    prefill: tuple[int, int, int]
    step: tuple[int, int, int]
    layout_rounds: int
    step_repeats: int
    sized_redundants: tuple[int, ...]
    sized_fraction: float


GPU_SCALE = Scale(
    hot="hot",
    domains="two-domains",
    deep="deep",
    redundant=8,
    loop_streams=32,
    loop_tokens=256,
    loop_steps=300,
    gap_streams=16,
    gap_tokens=4000,
    gap_rounds=5,
    between_s=0.6,
    recording_sessions=6,
    recording_pairs=5,
    recording_s=1.0,
    prefill_pairs=6,
    decode=(64, 32, 640),
    prefill=(96, 2048, 1),
    step=(24, 2048, 1),
    layout_rounds=2,
    step_repeats=3,
    sized_redundants=(0, 8),
    sized_fraction=0.1,
)
CPU_SCALE = Scale(
    hot="small-hot",
    domains="small-two-domains",
    deep="small-deep",
    redundant=8,
    loop_streams=2,
    loop_tokens=8,
    loop_steps=12,
    gap_streams=2,
    gap_tokens=24,
    gap_rounds=1,
    between_s=0.2,
    recording_sessions=1,
    recording_pairs=1,
    recording_s=0.5,
    prefill_pairs=1,
    decode=(4, 8, 3),
    prefill=(4, 32, 1),
    step=(4, 32, 1),
    layout_rounds=1,
    step_repeats=1,
    sized_redundants=(8,),
    sized_fraction=0.1,
)
