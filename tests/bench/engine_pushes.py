"""Random pushes in a row into a real SGLang under load: ``python -m tests.bench.engine_pushes``.

Needs an environment with SGLang: ``python3 dev.py engine --collect-only`` makes those of the tests.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.progress import Progress

from tests.bench.support.tables import print_head, print_rows
from tests.engine.engine_server import KIT, engine_server
from tests.engine.random_pushes import push_at_random

VENVS = Path(__file__).parents[2] / ".venv-sglang"
COLUMNS = (
    "SGLang",
    "pushes",
    "slots changed",
    "requests",
    "failed",
    "median ms",
    "longest ms",
    "hash",
    "weights",
    "outputs",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further push after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--venv", type=Path, default=os.environ.get("MOEPLAN_SGLANG_VENV", VENVS / "0.5.23"))
    chosen = parser.parse_args()
    python = Path(chosen.venv) / "bin" / "python"
    if not python.exists():
        parser.error(f"{chosen.venv} holds no environment with SGLang; python3 dev.py engine makes one.")
    print_head(
        "random pushes under load on a real SGLang (two ranks on the CPU, gloo, float32)",
        protocol=(
            "3 layers x 24 slots, 16 experts; every push is read back: every rank's map, every slot's checksums",
            "SGLang's own canary on every expert that is moved (SGLANG_EXPERT_LOCATION_UPDATER_CANARY=1)",
            "whole, or in chunks of one or two layers, by lot; four clients keep asking meanwhile",
            "at the end rolled back by the first layout's hash: hash, bytes of all slots, greedy tokens and logprobs",
            f"seed {chosen.seed}",
        ),
    )
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as bar:
        model = Path(folder) / "model"
        subprocess.check_call([python, KIT / "random_model.py", model], stdout=subprocess.DEVNULL)
        task = bar.add_task("pushes", total=chosen.pushes)
        with engine_server(Path(chosen.venv), model, Path(folder) / "engine") as engine:
            done = push_at_random(
                engine,
                pushes=chosen.pushes,
                seed=chosen.seed,
                history_folder=Path(folder) / "history",
                minutes=chosen.minutes,
                progress=lambda number: bar.update(task, completed=number),
            )
    kept = {True: "restored", False: "NOT restored"}
    row = (
        *(engine.version, done.pushes, done.changed_slots, done.answered, done.failed),
        *(f"{1000 * done.median_s:.0f}", f"{1000 * done.longest_s:.0f}"),
        *(kept[done.restored_hash == done.first_hash], kept[done.weights_restored], kept[done.outputs_restored]),
    )
    print_rows(COLUMNS, [row])
    return 0 if done.faultless and done.pushes == chosen.pushes else 1


if __name__ == "__main__":
    sys.exit(main())
