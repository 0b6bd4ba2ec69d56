"""Which rows of a batch are a rank's own tokens, so that every token is counted once and at its home GPU.

==============================  ====================================================================================
engine                          rows that a rank's router sees
==============================  ====================================================================================
all-to-all backend              its own tokens; with several ranks per attention group each its slice of the group's
DP attention, no all-to-all     the gathered batch: all data-parallel ranks' rows one after another, each padded
neither                         the whole batch, on every rank
==============================  ====================================================================================

Rows behind a rank's own tokens are padding. (SGLang's own recorder keeps the first rows of the gathered batch on
every rank, which are rank 0's.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profiler.engine.contract_demand import PHASES
from profiler.plugin.orders import OrderRefused
from profiler.plugin.rank_view import RankView


@dataclass(frozen=True)
class StepRows:
    """A forward pass as this rank takes part in it.

    Attributes
    ----------
    phase : int
        Index into ``PHASES``.
    tokens : int
        Real tokens of this rank's attention group, 0 when it only keeps the others company.
    """

    phase: int
    tokens: int


def step_rows(forward_batch: Any) -> StepRows:
    """Describe a batch before it is padded. Verification of drafted tokens is decoding."""
    mode = forward_batch.forward_mode
    prefill = mode.is_extend() and not mode.is_target_verify()
    tokens = 0 if mode.is_idle() else int(forward_batch.input_ids.shape[0])
    return StepRows(phase=PHASES.index("prefill" if prefill else "decode"), tokens=tokens)


def unused_tokens(scheduler: Any, batch: Any, *, tokens: int) -> tuple[int, ...]:
    """Return the tokens of a decode batch whose result the scheduler is about to throw away.

    With the overlap schedule the next step is launched before the result of the last one is looked at, so it holds a
    token of every request that ended (or was taken back) meanwhile; the condition is the one by which the scheduler
    skips them.
    """
    overlapped = scheduler.enable_overlap or getattr(scheduler, "enable_overlap_mlx", False)
    if not overlapped or not batch.forward_mode.is_decode() or not batch.reqs:
        return ()
    each = tokens // len(batch.reqs)  # several where drafted tokens are verified
    ended = [index for index, req in enumerate(batch.reqs) if req.finished() or req.is_retracted]
    return tuple(index * each + token for index in ended for token in range(each))


def own_bounds(view: RankView, tokens: int, *, rows: Any, padded_tokens: Sequence[int] | None) -> tuple[Any, Any]:
    """Return the first own row and the row behind the last.

    Parameters
    ----------
    tokens : int
        Real tokens of this rank's attention group.
    rows : int or scalar tensor
        Rows that the router saw; a tensor stays on its device, so nothing waits for it.
    padded_tokens : sequence of int or None
        Rows of every data-parallel rank in the gathered batch; None when all are equally long, as in CUDA graphs.

    Raises
    ------
    OrderRefused
        ``ROUTING_NOT_SEEN`` when ``rows`` and ``padded_tokens`` do not belong together.
    """
    if view.all_to_all:
        return 0 * rows, _between(tokens - first_own_token(view, rows=rows), 0, rows)
    if not view.dp_attention:
        return 0, tokens
    if padded_tokens is None:
        start = view.dp_rank * (rows // view.dp_size)
        return start, start + tokens
    if sum(padded_tokens) != rows:
        raise OrderRefused(
            f"the router saw {rows} rows, but the data-parallel ranks sent {sum(padded_tokens)}.",
            code="ROUTING_NOT_SEEN",
        )
    start = sum(padded_tokens[: view.dp_rank])
    return start, start + tokens


def first_own_token(view: RankView, *, rows: Any) -> Any:
    """Return which token of the attention group's batch stands in a rank's first own row."""
    return view.attn_tp_rank * rows if view.all_to_all else 0 * rows


def gathered_tokens(view: RankView) -> Sequence[int] | None:
    """Return the rows of every data-parallel rank in the batch that runs now."""
    if view.all_to_all or not view.dp_attention:
        return None
    from sglang.srt.layers.dp_attention import get_dp_global_num_tokens

    lengths: Sequence[int] | None = get_dp_global_num_tokens()
    return lengths


def _between(value: Any, low: int, high: Any) -> Any:
    if isinstance(value, int) and isinstance(high, int):
        return max(low, min(value, high))
    import torch

    return torch.minimum(torch.as_tensor(value).clamp(min=low), torch.as_tensor(high))
