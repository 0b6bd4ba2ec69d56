"""What hedging may give up on the command line, and that a target nobody asked for does not forbid it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.recordings import MIXED, recording_path
from tests.api.cli.command import Moeplan

PART = 0.1
TARGET_MISSED = 4


@pytest.fixture
def local_gpu(moeplan: Moeplan, tmp_path: Path) -> Callable[..., float]:
    def plan(*options: object) -> float:
        ran = moeplan(
            "plan", recording_path(MIXED), "--gpus", 4, "--slots-per-gpu", 12, "--max-imbalance", 1.3, "--out",
            tmp_path / "plan.json", "--json", *options,
        )  # fmt: skip
        assert ran.code in (0, TARGET_MISSED), ran.err
        share = ran.json["metrics"]["local_gpu"]
        assert isinstance(share, float)
        return share

    return plan


def test_a_plan_below_the_default_target_is_hedged(local_gpu: Callable[..., float]) -> None:
    """The plan has less than the usual target of 0.6, which nobody asked for."""
    free, hedged = local_gpu("--hedge", 0), local_gpu("--hedge", PART)
    assert free < 0.6
    assert free * (1 - PART) <= hedged < free


def test_a_target_that_was_asked_for_is_kept(local_gpu: Callable[..., float]) -> None:
    free = local_gpu("--hedge", 0)
    target = free - 0.001
    assert local_gpu("--hedge", PART, "--local-target", target) >= target


def test_a_target_out_of_reach_gives_nothing_up(local_gpu: Callable[..., float]) -> None:
    assert local_gpu("--hedge", PART, "--local-target", 0.9) == local_gpu("--hedge", 0)
