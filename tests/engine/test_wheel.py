"""moeplan as an engine host installs it: its wheel, without dependencies, in SGLang's own environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiler.engine.client import EngineClient
from profiler.engine.contract import PluginHealth
from profiler.engine.contract_demand import DemandOptions
from tests.engine.engine_server import INSTALLED, EngineServer, engine_server
from tests.engine.test_placement import pushed, random_map, read_placement, tensors_on_wrong_experts
from tests.engine.traffic import EIGHT_PROMPTS, generate

ROOT = Path(__file__).parents[2]
WHERE = """
import importlib.metadata, profiler.plugin
(found,) = importlib.metadata.entry_points(group="sglang.srt.plugins", name="moeplan")
print(found.dist.locate_file(""), profiler.plugin.__file__, sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel_environment(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and behind it what the engine's environment has but moeplan.

    Files .pth in a folder that a .pth names are not followed, so that environment's own checkout stays out.
    """
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _call(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    venv = folder / "venv"
    _call(environment / "bin" / "python", "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    behind, site = (Path(_call(each, "-c", SITE).strip()) for each in (environment / "bin" / "python", python))
    _call(*pip, f"--python={python}", "install", "--quiet", "--no-deps", "--no-index", wheel)
    own = [line for file in behind.glob("zz_*.pth") for line in file.read_text().splitlines()]
    (site / "behind.pth").write_text("\n".join([str(behind), *own]) + "\n")
    return venv


SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


@pytest.fixture(scope="module")
def wheel_engine(
    wheel_environment: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    with engine_server(wheel_environment, random_model, tmp_path_factory.mktemp("engine"), setup=INSTALLED) as running:
        yield running


def _call(*command: str | Path) -> str:
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    done = subprocess.run(
        [str(part) for part in command], cwd="/", env=clean, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_sglang_finds_the_plugin_of_the_wheel(wheel_environment: Path) -> None:
    metadata, module = _call(wheel_environment / "bin" / "python", "-c", WHERE).splitlines()
    assert Path(metadata).is_relative_to(wheel_environment)
    assert Path(module).is_relative_to(wheel_environment)


def test_an_engine_with_the_wheel_records_and_takes_a_layout(wheel_engine: EngineServer) -> None:
    health = PluginHealth.from_json(wheel_engine.get("/moeplan/health").json())
    assert health.ranks == (0, 1)
    assert {name: ability.reason for name, ability in health.abilities.items() if not ability.works} == {}
    with EngineClient(wheel_engine.url) as client:
        client.start_demand(DemandOptions(window_steps=10))
        answers = [generate(wheel_engine, prompt)["output_ids"] for prompt in EIGHT_PROMPTS]
        client.stop_demand()
        assert client.demand().windows
    before = read_placement(wheel_engine)
    pushed(wheel_engine, random_map(before, seed=3))
    after = read_placement(wheel_engine)
    assert after.layout_hash != before.layout_hash
    assert after.ranks_agree
    assert tensors_on_wrong_experts(before, after) == set()
    wheel_engine.flush_cache()
    assert [generate(wheel_engine, prompt)["output_ids"] for prompt in EIGHT_PROMPTS] == answers
