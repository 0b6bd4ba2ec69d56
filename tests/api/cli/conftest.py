"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from tests.api.cli.command import Moeplan


@pytest.fixture
def moeplan(capsys: pytest.CaptureFixture[str]) -> Moeplan:
    """Return the command."""
    return Moeplan(capsys)
