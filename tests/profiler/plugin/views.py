"""Ranks of imagined engines."""

from __future__ import annotations

from dataclasses import replace

from profiler.plugin.rank_view import RankView

PLAIN = RankView(
    tp_rank=0,
    tp_size=2,
    ep_rank=0,
    ep_size=2,
    moe_tp_size=1,
    pp_size=1,
    nodes=1,
    dp_attention=False,
    dp_size=1,
    dp_rank=0,
    attn_tp_size=2,
    attn_tp_rank=0,
    a2a_backend="none",
    dispatch="dynamic",
)
"""Rank 0 of two ranks that share every token."""


def plain(rank: int) -> RankView:
    """One of two ranks that share every token."""
    return replace(PLAIN, tp_rank=rank, ep_rank=rank, attn_tp_rank=rank)


def dp_attention(rank: int, *, ranks: int, a2a_backend: str = "none") -> RankView:
    """One of several ranks that attend to their own requests."""
    return replace(
        PLAIN,
        tp_rank=rank,
        tp_size=ranks,
        ep_rank=rank,
        ep_size=ranks,
        dp_attention=True,
        dp_size=ranks,
        dp_rank=rank,
        attn_tp_size=1,
        attn_tp_rank=0,
        a2a_backend=a2a_backend,
    )


def scattered(rank: int, *, ranks: int) -> RankView:
    """One of several ranks of one attention group behind an all-to-all backend, each with a slice of the tokens."""
    return replace(
        PLAIN,
        tp_rank=rank,
        tp_size=ranks,
        ep_rank=rank,
        ep_size=ranks,
        attn_tp_size=ranks,
        attn_tp_rank=rank,
        a2a_backend="deepep",
    )
