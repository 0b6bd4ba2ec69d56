"""Results of a run: one JSON line per finding, written at once, so that a run that is cut short keeps what it found."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Results:
    """Findings of one run.

    Attributes
    ----------
    folder : Path
    budget_s : float
        Seconds from the start after which no further stage begins.
    found : list of dict
        Every finding, as written to ``results.jsonl``.
    failed_stages : list of str
    """

    folder: Path
    budget_s: float
    found: list[dict[str, Any]] = field(default_factory=list)
    failed_stages: list[str] = field(default_factory=list)
    _started_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def say(self, text: str) -> None:
        print(f"[{self.elapsed_s:6.1f}] {text}", flush=True)

    def add(self, kind: str, **fields: Any) -> None:
        """Keep a finding."""
        finding = {"kind": kind, "at_s": round(self.elapsed_s, 1), **fields}
        self.found.append(finding)
        line = json.dumps(finding)
        with (self.folder / "results.jsonl").open("a") as lines:
            lines.write(line + "\n")
        self.say(line if len(line) <= 700 else f"{line[:700]}...")

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the findings of a kind, in order."""
        return [finding for finding in self.found if finding["kind"] == kind]


Stage = Callable[[], None]


def run_stages(stages: Sequence[tuple[str, Stage]], results: Results, *, wanted: Sequence[str]) -> None:
    """Run the wanted stages in order; a failure ends its own stage only, and is a finding."""
    for name, stage in stages:
        if name not in wanted:
            continue
        if results.elapsed_s > results.budget_s:
            results.add("stage", stage=name, status="skipped", reason=f"the budget of {results.budget_s:g} s is spent")
            continue
        started_s = results.elapsed_s
        try:
            stage()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other stages still have something to find
            results.failed_stages.append(name)
            text = "".join(traceback.format_exception(error))[-4000:]
            results.add("stage", stage=name, status="failed", reason=str(error)[:600])
            print(text, flush=True)
        else:
            results.add("stage", stage=name, status="done", took_s=round(results.elapsed_s - started_s, 1))


def read_results(file: Path) -> list[dict[str, Any]]:
    """Read the findings of a run, without a last line that was cut short."""
    found = []
    for line in file.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
