"""From measured times to the figures of a profile; torch is imported late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.hardware import ExpertTimes
from placement.model_shape import ExpertShape

Floats = npt.NDArray[np.float64]

STARTS = (1e-4, 5e14, 2e12, 2.5)
"""Fixed seconds, operations per second, bytes per second and overlap to start from."""

ROUNDS = 200


@dataclass(frozen=True)
class ExpertSample:
    """One measured time: so many routed tokens evenly over so many experts of one shape, on one GPU."""

    expert: ExpertShape
    rows: int
    active_experts: int
    seconds: float


@dataclass(frozen=True)
class LinkSample:
    """One measured time of bytes that were handled by every GPU and sent over a link by the busiest one."""

    handled_bytes: float
    sent_bytes: float
    seconds: float


@dataclass(frozen=True)
class LinkFigures:
    """Fixed seconds, and bytes per second of handling and of sending."""

    fixed_s: float
    handled_bytes_per_s: float | None
    sent_bytes_per_s: float


def fit_expert_times(samples: Sequence[ExpertSample]) -> ExpertTimes:
    """Find the roofline of bf16 products nearest to measured times.

    Least squares of the logarithms of predicted over measured times (so that 10 us of 100 count as much as 1 ms of
    10) by L-BFGS over the logarithms of the four figures.

    Parameters
    ----------
    samples
        At least four, over several numbers of rows and of experts.
    """
    import torch

    flops = torch.tensor([each.rows * float(each.expert.flops_per_row) for each in samples], dtype=torch.float64)
    weights = [each.active_experts * float(each.expert.weight_bytes) for each in samples]
    read = torch.tensor(weights, dtype=torch.float64)
    measured = torch.tensor([each.seconds for each in samples], dtype=torch.float64)
    starts = torch.tensor(STARTS, dtype=torch.float64)
    steps = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([steps], max_iter=ROUNDS, tolerance_change=1e-14, line_search_fn="strong_wolfe")

    def misfit() -> torch.Tensor:
        search.zero_grad()
        fixed, rate, bandwidth, overlap = starts * steps.exp()
        overlap = 1 + overlap
        logs = torch.stack((flops / rate, read / bandwidth)).log() * overlap
        predicted = fixed + (torch.logsumexp(logs, dim=0) / overlap).exp()
        squares: torch.Tensor = (predicted / measured).log().square().mean()
        squares.backward()  # type: ignore[no-untyped-call]
        return squares

    search.step(misfit)  # type: ignore[no-untyped-call]
    fixed, rate, bandwidth, overlap = (starts * steps.detach().exp()).tolist()
    return ExpertTimes(fixed, bandwidth, 1 + overlap, {"bf16": rate})


def fit_link(samples: Sequence[LinkSample], *, fixed_s: float | None = None) -> LinkFigures:
    """Find the straight line nearest to measured times, in relative error (linear least squares).

    Parameters
    ----------
    samples
        Where none handles anything, no rate of handling is sought.
    fixed_s
        Given, or None to find it too.
    """
    measured = np.array([each.seconds for each in samples])
    columns = {
        "fixed": np.ones(len(samples)),
        "handled": np.array([each.handled_bytes for each in samples]),
        "sent": np.array([each.sent_bytes for each in samples]),
    }
    if fixed_s is not None:
        del columns["fixed"]
    columns = {name: column for name, column in columns.items() if column.any()}
    table = np.stack(list(columns.values()), axis=1) / measured[:, None]
    wanted = np.ones(len(samples)) - (fixed_s or 0.0) / measured
    # Columns of very different sizes are brought to one before solving.
    size = np.abs(table).max(axis=0)
    found = dict(zip(columns, np.linalg.lstsq(table / size, wanted, rcond=None)[0] / size, strict=True))
    return LinkFigures(
        fixed_s=float(found["fixed"]) if fixed_s is None else fixed_s,
        handled_bytes_per_s=1 / float(found["handled"]) if "handled" in found else None,
        sent_bytes_per_s=1 / float(found["sent"]),
    )
