"""Processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from api.workers.fan_out import RunTask
from placement.solver.batches import SearchTask
from placement.solver.plans import Plans


class ProcessCrew:
    """So many processes, started when first needed.

    They are spawned: a fork would copy locks that other threads hold. An executor of :mod:`concurrent.futures` is
    used and no ``multiprocessing.Pool``, which waits for ever for the task of a killed worker and cannot even be
    ended when that worker held the lock of its queue.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._start()

    def submit(self, run: RunTask, task: SearchTask) -> Future[Plans]:
        """Send a task out, to new processes where one of the old ones died."""
        with _no_interrupts():
            try:
                return self._executor.submit(run, task)
            except BrokenProcessPool:
                self.close()
                self._start()
                return self._executor.submit(run, task)

    def close(self) -> None:
        """End the processes at once."""
        self._lifeline.close()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        held, self._lifeline = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            self.size, mp_context=context, initializer=_live_with_parent, initargs=(held,)
        )


def _live_with_parent(lifeline: Connection) -> None:
    """End this process as soon as the other end of the line is closed, by the parent or by its death."""
    threading.Thread(target=_end_after, args=(lifeline,), daemon=True).start()


def _end_after(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Start processes that do not see Ctrl-C: they inherit which signals are held back. The parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
