"""Fixtures of the workers' tests."""

from __future__ import annotations

import pytest

from placement.solver import batches


@pytest.fixture(autouse=True)
def one_layer_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every layer a batch of its own, so that small problems have something to share out."""
    monkeypatch.setattr(batches, "BATCH_CELLS", 1)
