"""Results of a run: one JSON line per finding, written at once, so that a run that is cut short keeps what it found."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.server import Engine


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

    def add_requests(self, engine: Engine) -> None:
        """Keep how many requests an engine was sent and how many failed, and count anew from here."""
        self.add(
            "requests",
            engine=engine.setup.name,
            start_s=round(engine.start_s, 1),
            requests=engine.requests,
            failed=engine.failed,
            failures=engine.failures[:3],
        )
        engine.requests = engine.failed = 0
        engine.failures.clear()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the findings of a kind, in order."""
        return [finding for finding in self.found if finding["kind"] == kind]


Stage = Callable[[], None]


def run_stages(
    stages: Iterable[tuple[str, Stage]],
    results: Results,
    *,
    wanted: Sequence[str] | None,
    table: Callable[[Sequence[dict[str, Any]]], str],
) -> None:
    """Run the wanted stages (None: all) in order; a failure ends its own stage only, and is a finding.

    Each stage is asked for when those before it have run. After every stage ``table.md`` is written anew.
    """
    for name, stage in stages:
        if wanted is not None and name not in wanted:
            continue
        results.add("stage", stage=name, **_outcome(stage, name, results))
        (results.folder / "table.md").write_text(table(results.found))


def _outcome(stage: Stage, name: str, results: Results) -> dict[str, Any]:
    """Run a stage and say how it ended."""
    started_s = results.elapsed_s
    if started_s > results.budget_s:
        return {"status": "skipped", "reason": f"the budget of {results.budget_s:g} s is spent"}
    try:
        stage()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other stages still have something to find
        print("".join(traceback.format_exception(error))[-4000:], flush=True)
        results.failed_stages.append(name)
        return {"status": "failed", "reason": str(error)[:600] or type(error).__name__}
    return {"status": "done", "took_s": round(results.elapsed_s - started_s, 1)}


def read_results(file: Path) -> list[dict[str, Any]]:
    """Read the findings of a run, without a last line that was cut short."""
    found = []
    for line in file.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
