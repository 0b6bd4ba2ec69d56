"""Every reader on its kept corpus, and for a moment on what a fuzzer makes of it (``python3 dev.py fuzz`` goes on)."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, joined, members_of

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
RUNS = 200
"""Inputs of a fuzzer for each target; a fixed number, so that equal runs try the same."""

LARGEST_CORPUS_BYTES = 512 * 1024


@pytest.mark.parametrize("file", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_inputs_are_read_or_refused(file: Path) -> None:
    TARGETS[file.parent.name](file.read_bytes())


@pytest.mark.parametrize("file", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_cut_and_turned_inputs_are_read_or_refused(file: Path) -> None:
    content, chance = file.read_bytes(), random.Random(file.name)
    for _ in range(20):
        changed = bytearray(content[: chance.randrange(len(content) + 1)] if chance.random() < 0.3 else content)
        for _ in range(chance.randrange(4)):
            if changed:
                changed[chance.randrange(len(changed))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        TARGETS[file.parent.name](bytes(changed))


def test_every_target_has_seeds_and_the_corpus_stays_small() -> None:
    assert {path.parent.name for path in KEPT} == set(TARGETS)
    assert sum(path.stat().st_size for path in KEPT) < LARGEST_CORPUS_BYTES


def test_members_come_back() -> None:
    members = [("a", b""), ("data/0", b"\0\n\xff=="), ("c", b"x\ny")]
    assert members_of(joined(members)) == members


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_fuzzer_finds_nothing_at_first_sight(target: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this Python: readers are tried on the kept corpus alone.")
    command = [sys.executable, "-m", "tests.fuzz.run", target, "--runs", str(RUNS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
