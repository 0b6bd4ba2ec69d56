#!/usr/bin/env python3
"""Everything a checkout needs, with the standard library only.

    python3 dev.py demo        record, plan, push and measure on the replay engine; writes an HTML report
    python3 dev.py test        ruff, mypy, import-linter and the tests (arguments go to pytest)
    python3 dev.py bench NAME  a benchmark of tests/bench that prints a table (without NAME: lists them)
    python3 dev.py run ...     the moeplan command of this checkout
    python3 dev.py setup       only make .venv and install into it

Each makes .venv at the first call and installs moeplan with the versions of constraints.txt.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
STAMP = VENV / "moeplan-installed"
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
    commands = {"demo": demo, "test": test, "bench": bench, "run": run, "setup": setup}
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
    return call(["moeplan", "demo", *(arguments or ["--exit"])])


def test(arguments: list[str]) -> int:
    """Run every check, also after one failed, and say at the end which failed."""
    failed = []
    for name, command in CHECKS.items():
        print(f"== {name}", flush=True)
        if call(command):
            failed.append(name)
    print("== pytest", flush=True)
    if call(["pytest", "-n", os.environ.get("MOEPLAN_TEST_PROCESSES", "auto"), *arguments]):
        failed.append("pytest")
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def bench(arguments: list[str]) -> int:
    names = sorted(path.stem for path in (ROOT / "tests" / "bench").glob("*.py") if path.stem != "__init__")
    if not arguments or arguments[0] not in names:
        print("Benchmarks: " + ", ".join(names), file=sys.stderr)
        return 2
    return call(["python", "-m", f"tests.bench.{arguments[0]}", *arguments[1:]])


def run(arguments: list[str]) -> int:
    return call(["moeplan", *arguments], directory=Path.cwd())


def setup(_arguments: list[str]) -> int:
    print(f"moeplan is installed: {BIN / 'moeplan'}")
    return 0


def check_call(command: list[str]) -> None:
    if subprocess.call(command, cwd=ROOT):
        print(f"This failed: {' '.join(command)}", file=sys.stderr)
        raise SystemExit(1)


def call(command: list[str], *, directory: Path = ROOT) -> int:
    return subprocess.call([str(BIN / command[0]), *command[1:]], cwd=directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
