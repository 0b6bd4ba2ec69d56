"""How far a push is, read from the engine while it is under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from api.jobs.rollout_aim import Aim
from api.jobs.running import JobTakenOver
from api.service.engine_access import engine_client
from placement.errors import CodedError
from profiler.engine.contract import Placement
from profiler.engine.map_rules import changed_layers, chunks_of_layers

POLL_S = 0.5
PUSH_SHARE = (0.1, 0.6)
"""Part of a rollout's progress that its push is."""


@contextmanager
def progress_told(aim: Aim, seen: Placement, wanted_LP: npt.NDArray[np.int32]) -> Iterator[None]:
    """Report the layers that are new, from a thread of its own, while the block pushes.

    The engine answers between two chunks, so a push in one chunk has nothing to tell.

    Parameters
    ----------
    seen
        The engine before this push.
    wanted_LP
        The map that is being pushed.
    """
    changing = changed_layers(seen.map_LP, wanted_LP, among=range(seen.layers))
    chunks = chunks_of_layers(changing, layers_per_chunk=aim.rollout.pace.get("layers_per_chunk"))
    if len(chunks) < 2:
        yield
        return
    over = threading.Event()
    teller = threading.Thread(
        target=_tell, args=(aim, wanted_LP, chunks, over), name=f"progress of {aim.rollout_id}", daemon=True
    )
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _tell(
    aim: Aim, wanted_LP: npt.NDArray[np.int32], chunks: tuple[tuple[int, ...], ...], over: threading.Event
) -> None:
    layers = sum(len(chunk) for chunk in chunks)
    told = 0
    try:
        with engine_client(aim.service, aim.engine) as client:
            while not over.wait(POLL_S):
                is_new_L = (client.placement().map_LP == wanted_LP).all(axis=1)
                done = sum(bool(is_new_L[list(chunk)].all()) for chunk in chunks)
                if done == told or over.is_set():
                    continue
                told = done
                new = int(sum(is_new_L[list(chunk)].sum() for chunk in chunks))
                begin, end = PUSH_SHARE
                aim.report(
                    begin + (end - begin) * done / len(chunks),
                    f"pushing: chunk {done} of {len(chunks)} is done, {new} of {layers} layers are new",
                )
    except (CodedError, JobTakenOver):
        return  # whoever pushes finds out by itself
