from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engine.engine_server import KIT, EngineServer, engine_server

ENVIRONMENT_VARIABLE = "MOEPLAN_SGLANG_VENV"


@pytest.fixture(scope="session")
def environment() -> Path:
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if not named:
        pytest.skip(f"{ENVIRONMENT_VARIABLE} names no environment with SGLang (tests/engine/kit/setup.sh makes one)")
    return Path(named)


@pytest.fixture(scope="session")
def random_model(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random-moe")
    subprocess.check_call([str(environment / "bin" / "python"), str(KIT / "random_model.py"), str(folder)])
    return folder


class OneEngine:
    """Keeps one engine running, and another in its place when a test asks for other arguments."""

    def __init__(self, environment: Path, model: Path, folders: pytest.TempPathFactory) -> None:
        self._environment, self._model, self._folders = environment, model, folders
        self._arguments: tuple[str, ...] | None = None
        self._stack = ExitStack()
        self._server: EngineServer | None = None

    def with_arguments(self, *arguments: str) -> EngineServer:
        if self._server is None or arguments != self._arguments:
            self.stop()
            folder = self._folders.mktemp("engine")
            self._server = self._stack.enter_context(
                engine_server(self._environment, self._model, folder, arguments=arguments)
            )
            self._arguments = arguments
        return self._server

    def stop(self) -> None:
        self._server = None
        self._stack.close()


@pytest.fixture(scope="session")
def one_engine(environment: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneEngine]:
    engines = OneEngine(environment, random_model, tmp_path_factory)
    yield engines
    engines.stop()


@pytest.fixture
def engine(one_engine: OneEngine) -> EngineServer:
    """An engine without an all-to-all backend and without DP attention."""
    return one_engine.with_arguments()


@pytest.fixture
def dp_engine(one_engine: OneEngine) -> EngineServer:
    """An engine with two data-parallel attention ranks and without an all-to-all backend."""
    return one_engine.with_arguments("--enable-dp-attention", "--dp", "2")
