#!/usr/bin/env python3
"""Everything a checkout needs, with the standard library only.

    python3 dev.py demo        record, plan, push and measure on the replay engine; writes an HTML report and leaves the
                               service running, with its dashboard, until Ctrl-C (--exit: stops it after the summary)
    python3 dev.py test        ruff, mypy, import-linter and the tests (with arguments: pytest gets them)
    python3 dev.py thorough    the tests that test leaves out: the other database, more deaths
                               of workers (arguments go to pytest)
    python3 dev.py engine      the tests on a real SGLang on this machine's CPU, all of them, on both versions that are
                               supported (test runs most of them on one; arguments go to pytest)
    python3 dev.py bench NAME  a benchmark of tests/bench that prints a table (without NAME: lists them)
    python3 dev.py deploy      what looks at deploy/: containers, Kubernetes, systemd, alerts and guide (part of test)
    python3 dev.py fuzz [TARGET] [--seconds N]
                               fuzzes the readers, every one for ten minutes (test does so for a moment)
    python3 dev.py openapi     writes deploy/openapi.json anew, after routes were changed on purpose
    python3 dev.py audit       asks public services for known vulnerabilities of the pinned versions (part of CI);
                               ends with 3 where they cannot be asked, and says so
    python3 dev.py run ...     the moeplan command of this checkout
    python3 dev.py setup       only make .venv and install into it

Each makes .venv at the first call and installs moeplan with the versions of constraints.txt. Tests on a real SGLang
make an environment of their own for each version in .venv-sglang/ (2.5 GB, 1-2 minutes, needs a package index);
MOEPLAN_SGLANG_VENV names one to use instead, MOEPLAN_TEST_SKIP_ENGINE=1 leaves these tests out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
AUDIT_VENV = ROOT / ".venv-audit"
ENGINE_VENVS = ROOT / ".venv-sglang"
ENGINE_KIT = ROOT / "tests" / "engine" / "kit"
ENGINE_VERSIONS = ("0.5.23", "0.5.16")
ENGINE_VERSION_OF_TEST = "0.5.23"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
STAMP = VENV / "moeplan-installed"
AUDIT_SERVICES = ("pypi", "osv")
NOT_AUDITED = 3
CHECKS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "import-linter": ["lint-imports"],
}


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  (run by hand with whatever python3 is there)
        print(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}.", file=sys.stderr)
        return 2
    commands = {
        "demo": demo,
        "test": test,
        "thorough": thorough,
        "engine": engine,
        "bench": bench,
        "deploy": deploy,
        "fuzz": fuzz,
        "openapi": openapi,
        "audit": audit,
        "run": run,
        "setup": setup,
    }
    if not arguments or arguments[0] not in commands:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    install()
    return commands[arguments[0]](arguments[1:])


def install() -> None:
    """Make the virtual environment and install, unless the last install still fits."""
    versions = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    wanted = hashlib.sha256(versions).hexdigest()
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return
    if not (BIN / "python").exists():
        if VENV.exists():
            shutil.rmtree(VENV)
        print("Making .venv and installing moeplan (torch is the largest part; a CPU build is enough) ...", flush=True)
        check_call([sys.executable, "-m", "venv", str(VENV)])
    pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    check_call([*pip, "--constraint", "constraints.txt", "--editable", ".[dev]"])
    STAMP.write_text(wanted)


def demo(arguments: list[str]) -> int:
    return call(["moeplan", "demo", *arguments])


def test(arguments: list[str]) -> int:
    """Run every check, also after one failed, and say at the end which failed."""
    # One version, and the engines that most tests run on: every start takes half a minute or more. Its environment is
    # fetched meanwhile.
    making = ThreadPoolExecutor(1)
    engines = None if arguments else making.submit(engines_to_test, (ENGINE_VERSION_OF_TEST,))
    failed = []
    for name, command in CHECKS.items():
        print(f"== {name}", flush=True)
        if call(command):
            failed.append(name)
    print("== pytest", flush=True)
    chosen = arguments or ["--ignore=tests/engine", "-m", "not thorough"]
    if call(["pytest", *test_processes(), *chosen]):
        failed.append("pytest")
    if engines is not None:
        failed += engine_failures(engines.result(), ["tests/engine", "--core-engines"])
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def thorough(arguments: list[str]) -> int:
    return call(["pytest", *test_processes(), "--ignore=tests/engine", "-m", "thorough", *arguments])


def test_processes() -> list[str]:
    return ["-n", os.environ.get("MOEPLAN_TEST_PROCESSES", "auto"), "--dist", "loadgroup"]


def engine(arguments: list[str]) -> int:
    return 1 if engine_failures(engines_to_test(ENGINE_VERSIONS), arguments or ["tests/engine"]) else 0


def engines_to_test(versions: tuple[str, ...]) -> dict[str, Path | None]:
    """Return the environments with SGLang by their names, made where they are missing."""
    if os.environ.get("MOEPLAN_TEST_SKIP_ENGINE") == "1":
        print("== SGLang: left out (MOEPLAN_TEST_SKIP_ENGINE=1)", flush=True)
        return {}
    named = os.environ.get("MOEPLAN_SGLANG_VENV")
    return {f"SGLang of {named}": Path(named)} if named else engine_venvs(versions)


def engine_failures(venvs: dict[str, Path | None], arguments: list[str]) -> list[str]:
    """Run the tests on a real SGLang, one engine at a time, and return which runs failed."""
    failed = []
    for name, venv in venvs.items():
        print(f"== {name}", flush=True)
        if venv is None:
            print(
                f"The environment with {name} could not be made (see above); "
                "set MOEPLAN_TEST_SKIP_ENGINE=1 to test without an engine.",
                file=sys.stderr,
            )
            failed.append(name)
            continue
        if call(["pytest", "-p", "no:xdist", *arguments], MOEPLAN_SGLANG_VENV=str(venv)):
            failed.append(name)
    return failed


def engine_venvs(versions: tuple[str, ...]) -> dict[str, Path | None]:
    """Make the environments with SGLang, side by side, unless they still fit; None for one that could not be made."""
    venvs = {version: ENGINE_VENVS / version for version in versions}
    wanted = {version: engine_stamp(version) for version in venvs}
    stale = [version for version, venv in venvs.items() if stamp_of(venv) != wanted[version]]
    if stale:
        print(f"Making the environments with SGLang {' and '.join(stale)} (1-2 minutes) ...", flush=True)
    # With this checkout's own interpreter: it is known to be new enough.
    environment = os.environ | {"PYTHON": str(BIN / "python")}
    setups = {
        version: subprocess.Popen(
            ["bash", str(ENGINE_KIT / "setup.sh"), str(venvs[version]), version], cwd=ROOT, env=environment
        )
        for version in stale
    }
    made = {version for version, setup in setups.items() if setup.wait() == 0}
    for version in made:
        (venvs[version] / STAMP.name).write_text(wanted[version])
    usable = made | (venvs.keys() - set(stale))
    return {f"SGLang {version}": venv if version in usable else None for version, venv in venvs.items()}


def engine_stamp(version: str) -> str:
    parts = (ENGINE_KIT / "setup.sh", ENGINE_KIT / f"constraints-{version}.txt", ROOT / "pyproject.toml")
    return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()


def stamp_of(venv: Path) -> str:
    stamp = venv / STAMP.name
    return stamp.read_text() if stamp.is_file() else ""


def bench(arguments: list[str]) -> int:
    names = sorted(path.stem for path in (ROOT / "tests" / "bench").glob("*.py") if path.stem != "__init__")
    if not arguments or arguments[0] not in names:
        print("Benchmarks: " + ", ".join(names), file=sys.stderr)
        return 2
    return call(["python", "-m", f"tests.bench.{arguments[0]}", *arguments[1:]])


def deploy(arguments: list[str]) -> int:
    return call(["pytest", "-p", "no:xdist", "-rs", "tests/deploy", *arguments])


def fuzz(arguments: list[str]) -> int:
    """Fuzz the targets one after the other; the first that finds something ends it."""
    if arguments and not arguments[0].startswith("-"):
        return call(["python", "-m", "tests.fuzz.run", *arguments])
    targets = sorted(path.name for path in (ROOT / "tests" / "fuzz" / "corpus").iterdir())
    for target in targets:
        print(f"== {target}", flush=True)
        if call(["python", "-m", "tests.fuzz.run", target, *arguments]):
            return 1
    return 0


def openapi(_arguments: list[str]) -> int:
    return call(["python", "-m", "tests.api.http.described"])


def audit(arguments: list[str]) -> int:
    """Look the pinned versions up; 1: some have known holes; 3: not all could be looked up, which is said."""
    tool = AUDIT_VENV / BIN.name / "pip-audit"
    if not tool.exists():
        check_call([sys.executable, "-m", "venv", str(AUDIT_VENV)])
        python = str(AUDIT_VENV / BIN.name / "python")
        if subprocess.call([python, "-m", "pip", "install", "--quiet", "pip-audit"], cwd=ROOT):
            print("NOT AUDITED: pip-audit could not be installed.", flush=True)
            return NOT_AUDITED
    for service in AUDIT_SERVICES:
        options = ["--requirement", "constraints.txt", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        command = [str(tool), *options, "--format", "json", "--vulnerability-service", service, *arguments]
        asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        code, told = judged(asked.stdout, service=service)
        print(told, flush=True)
        if code != NOT_AUDITED:
            break
    return code


def judged(report: str, *, service: str) -> tuple[int, str]:
    """Return the exit code and the lines for what pip-audit reports: it calls what it could not look up safe."""
    try:
        found = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return NOT_AUDITED, f"NOT AUDITED: {service} cannot be asked from here."
    missing = [each["name"] for each in found if "skip_reason" in each]
    if len(missing) == len(found):
        return NOT_AUDITED, f"NOT AUDITED: {service} says nothing of the pinned versions; it cannot be asked from here."
    holes = [
        f"{each['name']} {each['version']}: {hole['id']}, fixed in {', '.join(hole['fix_versions']) or 'no version'}"
        for each in found
        for hole in each.get("vulns", ())
    ]
    looked_up = f"{len(found) - len(missing)} of {len(found)} pinned versions were looked up at {service}"
    lines = [*holes, f"{looked_up}: {len(holes) or 'no'} known vulnerabilities."]
    if missing:
        lines.append(f"NOT AUDITED, because {service} says nothing of them: {', '.join(missing)}.")
    return (1 if holes else NOT_AUDITED if missing else 0), "\n".join(lines)


def run(arguments: list[str]) -> int:
    return call(["moeplan", *arguments], directory=Path.cwd())


def setup(_arguments: list[str]) -> int:
    print(f"moeplan is installed: {BIN / 'moeplan'}")
    return 0


def check_call(command: list[str]) -> None:
    if subprocess.call(command, cwd=ROOT):
        print(f"This failed: {' '.join(command)}", file=sys.stderr)
        raise SystemExit(1)


def call(command: list[str], *, directory: Path = ROOT, **variables: str) -> int:
    environment = os.environ | variables
    # Tests start some hundred processes, which would compile every module anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.call([str(BIN / command[0]), *command[1:]], cwd=directory, env=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
