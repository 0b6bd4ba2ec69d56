from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.api.cli.command import Moeplan
from tests.engine.engine_server import (
    ALL_TO_ALL,
    BALANCING,
    DP_ATTENTION,
    INT8,
    KIT,
    OTHER_MODEL,
    PLAIN,
    PROTECTED_WITHOUT_DISPATCH,
    EngineServer,
    EngineSetup,
    engine_server,
)

ENVIRONMENT_VARIABLE = "MOEPLAN_SGLANG_VENV"
CORE_ENGINES = ("engine", "all_to_all_engine")
ENGINE_FIXTURES = (
    "engine",
    "dp_engine",
    "all_to_all_engine",
    "protected_engine",
    "balancing_engine",
    "int8_engine",
    "mixtral_engine",
    "wheel_engine",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--core-engines", action="store_true", help="Start only the plain engine and the one behind an all-to-all."
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the tests of one engine together, so that each engine starts once; leave out those not asked for."""
    if config.getoption("--core-engines", default=False):
        others = [item for item in items if _engine_of(item) not in (-1, *map(ENGINE_FIXTURES.index, CORE_ENGINES))]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    mine = [index for index, item in enumerate(items) if item.path.is_relative_to(Path(__file__).parent)]
    by_engine = sorted((items[index] for index in mine), key=_engine_of)
    for index, item in zip(mine, by_engine, strict=True):
        items[index] = item


def _engine_of(item: pytest.Item) -> int:
    """Return the number of the engine that a test runs on, -1 where it runs on none."""
    fixtures = getattr(item, "fixturenames", ())
    another = len(ENGINE_FIXTURES) if "one_engine" in fixtures else -1
    return next((number for number, name in enumerate(ENGINE_FIXTURES) if name in fixtures), another)


@pytest.fixture(scope="session")
def environment() -> Path:
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if not named:
        pytest.skip(f"{ENVIRONMENT_VARIABLE} names no environment with SGLang (python3 dev.py engine makes one)")
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("engines run one at a time: python3 dev.py engine")
    return Path(named)


@pytest.fixture(scope="session")
def random_model(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_model(environment, tmp_path_factory.mktemp("random-moe"))


@pytest.fixture(scope="session")
def other_weights(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the same model with other weights."""
    return written_model(environment, tmp_path_factory.mktemp("other-moe"), "--seed", "4321")


@pytest.fixture(scope="session")
def int8_model(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose experts are int8, with scales."""
    return written_model(environment, tmp_path_factory.mktemp("int8-moe"), "--precision", "int8")


@pytest.fixture(scope="session")
def mixtral(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a model for which SGLang has no expert location."""
    return written_model(environment, tmp_path_factory.mktemp("mixtral"), script="random_mixtral.py")


def written_model(environment: Path, folder: Path, *options: str, script: str = "random_model.py") -> Path:
    """Write a checkpoint with a script of the kit, in the engine's environment, and return its folder."""
    subprocess.check_call([str(environment / "bin" / "python"), str(KIT / script), str(folder), *options])
    return folder


class OneEngine:
    """Keeps one engine running, and another in its place when a test asks for another setup or model."""

    def __init__(self, environment: Path, model: Path, folders: pytest.TempPathFactory) -> None:
        self._environment, self._model, self._folders = environment, model, folders
        self._started: tuple[EngineSetup, Path] | None = None
        self._stack = ExitStack()
        self._server: EngineServer | None = None

    def get(self, setup: EngineSetup, *, model: Path | None = None) -> EngineServer:
        """Return a running engine, of the usual model unless another is named."""
        wanted = (setup, model or self._model)
        if self._server is None or wanted != self._started:
            self.stop()
            running = engine_server(self._environment, wanted[1], self._folders.mktemp("engine"), setup=setup)
            self._server = self._stack.enter_context(running)
            self._started = wanted
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
    return one_engine.get(PLAIN)


@pytest.fixture
def dp_engine(one_engine: OneEngine) -> EngineServer:
    return one_engine.get(DP_ATTENTION)


@pytest.fixture
def all_to_all_engine(one_engine: OneEngine) -> EngineServer:
    return one_engine.get(ALL_TO_ALL)


@pytest.fixture
def protected_engine(one_engine: OneEngine) -> EngineServer:
    return one_engine.get(PROTECTED_WITHOUT_DISPATCH)


@pytest.fixture
def balancing_engine(one_engine: OneEngine) -> EngineServer:
    return one_engine.get(BALANCING)


@pytest.fixture
def moeplan(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moeplan:
    """The command, with no engine's layouts remembered and no key."""
    monkeypatch.setenv("MOEPLAN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("MOEPLAN_ENGINE_KEY", raising=False)
    return Moeplan(capsys)


@pytest.fixture
def int8_engine(one_engine: OneEngine, int8_model: Path) -> EngineServer:
    return one_engine.get(INT8, model=int8_model)


@pytest.fixture
def mixtral_engine(one_engine: OneEngine, mixtral: Path) -> EngineServer:
    return one_engine.get(OTHER_MODEL, model=mixtral)
