"""Fuzzes one target: ``python -m tests.fuzz.run TARGET [--seconds N | --runs N]``; finds lie in out/fuzz/TARGET.

Atheris watches which lines of ours an input reaches and changes those inputs further that reach new ones, beginning
with the kept corpus. A finding is a file ``crash-*`` (or ``timeout-*``, ``oom-*``): mend the reader, then keep the
file in tests/fuzz/corpus/TARGET under the name of the fault, so that it is tried for ever.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["placement", "profiler", "api"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
MEMORY_MIB = 3000
SLOWEST_S = 30
"""One input that takes longer is a finding."""

LARGEST_BYTES = 16384


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--seconds", type=int, default=600)
    limit.add_argument("--runs", type=int)
    asked = parser.parse_args()
    out = ROOT / "out" / "fuzz" / asked.target
    found = out / "corpus"
    found.mkdir(parents=True, exist_ok=True)
    end = f"-runs={asked.runs}" if asked.runs is not None else f"-max_total_time={asked.seconds}"
    options = [
        sys.argv[0], str(found), str(CORPUS / asked.target), end, f"-rss_limit_mb={MEMORY_MIB}",
        f"-timeout={SLOWEST_S}", f"-max_len={LARGEST_BYTES}", f"-artifact_prefix={out}/", "-seed=1",
        "-print_final_stats=1",
    ]  # fmt: skip
    for seed in (CORPUS / asked.target).iterdir():  # loads what is imported late, which is no slow input
        TARGETS[asked.target](seed.read_bytes())
    atheris.Setup(options, TARGETS[asked.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
