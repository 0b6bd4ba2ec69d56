"""``moeplan calibrate`` where there is no GPU; with GPUs it is run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.api.cli.command import Moeplan


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_writes_nothing(moeplan: Moeplan, tmp_path: Path) -> None:
    line = moeplan.refused("calibrate", "--out", tmp_path / "mine.toml", code="NO_GPU")
    assert "finds no CUDA device" in line
    assert not (tmp_path / "mine.toml").exists()


def test_an_unknown_base_is_refused_before_anything_is_measured(moeplan: Moeplan, tmp_path: Path) -> None:
    line = moeplan.refused("calibrate", "--out", tmp_path / "mine.toml", "--base", "h300", code="INPUT_NOT_FOUND")
    assert "b200, h100, h20, h200" in line
