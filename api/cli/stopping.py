"""Ending a command from outside in an orderly way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

UNWINDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Terminated(BaseException):
    """The process was asked to end (SIGTERM, or its terminal was closed)."""


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise :class:`Terminated`, as SIGINT raises KeyboardInterrupt.

    Temporary files are then removed and recordings stopped on the way out. A signal that the caller has set to be
    ignored (``nohup``) stays ignored. Signals belong to the main thread; elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in UNWINDING}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _raise_terminated)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second one must not cut the tidying short
    raise Terminated
