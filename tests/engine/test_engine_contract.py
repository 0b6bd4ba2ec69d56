"""A real SGLang with moeplan's plugin keeps the contract, as the replay engine does."""

from __future__ import annotations

import pytest

from tests.engine.engine_server import EngineServer
from tests.engine_contract import EngineContract


@pytest.fixture
def subject(engine: EngineServer) -> EngineServer:
    return engine


class TestLiveEngine(EngineContract):
    """All of it."""
