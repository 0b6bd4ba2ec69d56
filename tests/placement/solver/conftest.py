"""Less effort for proofs: how much is proven changes with it, what has to hold does not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _little_effort() -> Iterator[None]:
    # By name: the package has a function of the same name.
    module = importlib.import_module("placement.solver.solving")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EXACT_SECONDS", 0.5)
        patch.setattr(module, "BOUND_SECONDS", 0.1)
        yield
