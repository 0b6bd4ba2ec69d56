"""Many random pushes into an engine under load, each verified, and back to the first layout at the end."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.history import LayoutHistory
from profiler.engine.push import push
from profiler.engine.rollback import rollback
from tests.engine.engine_server import EngineServer
from tests.engine.traffic import greedy_run, under_load


@dataclass(frozen=True)
class RandomPushes:
    """What came of a row of pushes.

    Attributes
    ----------
    pushes : int
        Applied, and verified slot by slot: a push that is not ends the row with its error.
    changed_slots : int
        Of all pushes together.
    answered, failed : int
        Requests meanwhile.
    median_s, longest_s : float
        Time that a push took in the engine, over its chunks.
    first_hash, restored_hash : str
        Layout before the first push, and after going back to it by its hash.
    weights_restored : bool
        Whether every slot holds the bytes that it held at the start.
    outputs_restored : bool
        Whether greedy tokens and log probabilities are those of the start, to the last bit.
    """

    pushes: int
    changed_slots: int
    answered: int
    failed: int
    median_s: float
    longest_s: float
    first_hash: str
    restored_hash: str
    weights_restored: bool
    outputs_restored: bool

    @property
    def faultless(self) -> bool:
        return (
            not self.failed
            and self.restored_hash == self.first_hash
            and self.weights_restored
            and self.outputs_restored
        )


def random_layout(placement: Placement, draw: random.Random) -> Layout:
    """Return a layout that holds every expert and, beside them, any experts any number of times."""
    rows = []
    for _ in range(placement.layers):
        extra = [draw.randrange(placement.experts) for _ in range(placement.slots - placement.experts)]
        row = [*range(placement.experts), *extra]
        draw.shuffle(row)
        rows.append(row)
    return Layout(np.array(rows, dtype=np.int32), gpus=placement.ep_size, experts=placement.experts)


def push_at_random(
    engine: EngineServer,
    *,
    pushes: int,
    seed: int,
    history_folder: Path,
    minutes: float = math.inf,
    progress: Callable[[int], None] = lambda done: None,
) -> RandomPushes:
    """Push so many random layouts under load, whole or in chunks, then go back to the first.

    Parameters
    ----------
    minutes
        No further push begins after so long; the row is then shorter than was asked for, but never empty.

    Raises
    ------
    EngineError
        From a push that was refused, failed or not verified.
    """
    draw = random.Random(seed)
    history = LayoutHistory(history_folder)
    ends_s = time.monotonic() + 60 * minutes
    with EngineClient(engine.url, engine.admin_key or None) as client:
        first = client.placement(checksums=True)
        reference = greedy_run(engine)
        seconds, changed = [], 0
        with under_load(engine) as load:
            for number in range(pushes):
                if seconds and time.monotonic() > ends_s:
                    break
                layout = random_layout(first, draw)
                applied = push(client, layout, history=history, layers_per_chunk=draw.choice((None, 1, 2)))
                chunks = applied.answer.chunks if applied.answer is not None else ()
                changed += sum(chunk.changed_slots for chunk in chunks)
                seconds.append(sum(chunk.seconds or 0.0 for chunk in chunks))
                progress(number + 1)
            rollback(client, history=history, to_hash=first.layout_hash)
        restored = client.placement(checksums=True)
    return RandomPushes(
        pushes=len(seconds),
        changed_slots=changed,
        answered=load.answered,
        failed=len(load.failed),
        median_s=statistics.median(seconds),
        longest_s=max(seconds),
        first_hash=first.layout_hash,
        restored_hash=restored.layout_hash,
        weights_restored=restored.checksums == first.checksums,
        outputs_restored=greedy_run(engine) == reference,
    )
