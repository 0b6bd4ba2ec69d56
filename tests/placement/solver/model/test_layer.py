"""Numbers that a model of whole numbers can hold."""

from __future__ import annotations

import pytest

from placement.solver.model.layer import whole, whole_worth


@pytest.mark.parametrize(("value", "load", "worth"), [(3.0, 3, 3), (2.999, 3, 3), (3.001, 3, 3), (3.5, 3, 4)])
def test_rounding_loosens(value: float, load: int, worth: int) -> None:
    assert (whole(value), whole_worth(value)) == (load, worth)
