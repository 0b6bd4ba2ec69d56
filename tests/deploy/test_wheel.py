"""The wheel as a user installs it: in an environment of its own, everything that is needed inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.deploy.tools import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PACKAGES = ("placement", "profiler", "api", "migrations")
RECORDING = "profiler/recordings/tiny_moe_affinity.npz"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and with the dependencies of this one but without its checkout."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    target = _call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    _call(
        sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps", "--no-index", wheel,
        directory=folder,
    )  # fmt: skip
    # Files .pth in a folder that a .pth names are not followed: the checkout itself stays out.
    Path(target, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def _call(*command: str | Path, directory: Path = ROOT, code: int = 0) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=directory, env=clean, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_it_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert wheel.name == f"moeplan-{VERSION}-py3-none-any.whl"
    assert {name.split("/")[0] for name in names} == {
        *PACKAGES, f"moeplan-{VERSION}.dist-info",
    }  # fmt: skip
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if tracked:
        inside = {name for name in names if ".dist-info/" not in name}
        assert inside == set(tracked), "what git knows and what the wheel holds differ"


def test_what_is_no_python_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for kind in (".j2", ".css", ".npz", ".toml", ".json", "py.typed"):
        assert [name for name in names if name.endswith(kind)], kind
    assert [name for name in names if name.startswith("migrations/versions/0")]
    assert RECORDING in names


def test_the_command_runs_from_it_and_from_it_alone(environment: Path, tmp_path: Path) -> None:
    moeplan = environment / "bin" / "moeplan"
    assert _call(moeplan, "--version", directory=tmp_path) == f"moeplan {VERSION}\n"
    places = "import importlib, sys; print(*(importlib.import_module(name).__path__[0] for name in sys.argv[1:]))"
    found = _call(environment / "bin" / "python", "-c", places, *PACKAGES, directory=tmp_path)
    assert found.count(str(environment)) == 4


def test_schema_plan_and_report_come_out_of_it(environment: Path, tmp_path: Path) -> None:
    moeplan = environment / "bin" / "moeplan"
    assert "revision" in _call(moeplan, "db", "upgrade", "--data-dir", tmp_path / "data", directory=tmp_path)
    assert json.loads(_call(moeplan, "db", "check", "--data-dir", tmp_path / "data", "--json"))["differences"] == []
    python = environment / "bin" / "python"
    where = "from profiler.recordings import AFFINITY, recording_path; print(recording_path(AFFINITY))"
    recording = _call(python, "-c", where, directory=tmp_path).strip()
    plan = tmp_path / "plan.json"
    _call(moeplan, "plan", recording, "--gpus", "4", "--slots-per-gpu", "10", "--out", plan, directory=tmp_path)
    _call(moeplan, "report", plan, "--out", tmp_path / "plan.html", directory=tmp_path)
    assert "</html>" in (tmp_path / "plan.html").read_text()


def test_sglang_finds_the_plugin_in_it(environment: Path, tmp_path: Path) -> None:
    script = (
        "from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='sglang.srt.plugins', name='moeplan')\n"
        "print(found.value, callable(found.load()))"
    )
    printed = _call(environment / "bin" / "python", "-c", script, directory=tmp_path)
    assert printed == "profiler.plugin:register True\n"
