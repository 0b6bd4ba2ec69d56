"""One recording at a time: SGLang's recorder forgets what it holds when it is started again, and says so nowhere.

The lease is a small file in the folder that dumps go to, for that is what everybody who records from an engine has in
common. It names its holder and when it ends, so that one left behind by a client that was killed ends by itself.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from profiler.errors import EngineBusy

LEASE_FILE = ".moeplan-recording"
GRACE_S = 120.0
"""Beyond the recording itself: stopping, dumping and reading."""

MAX_LEASE_BYTES = 4096
MAX_LEASE_S = 86400.0
"""A lease that says it is longer is damaged."""


@dataclass(frozen=True)
class Holder:
    """Who records.

    Attributes
    ----------
    token : str
        Differs for every recording.
    who : str
        Host and process.
    until_s : float
        Seconds since 1970 after which the lease is over.
    """

    token: str
    who: str
    until_s: float


class RecordingLease:
    """The lease of one recording.

    Attributes
    ----------
    guarded : bool
        False where the folder may not be written, so that nobody else can know of this recording.
    """

    def __init__(self, path: Path, holder: Holder, *, guarded: bool) -> None:
        self._path = path
        self._holder = holder
        self.guarded = guarded

    def require_held(self) -> None:
        """Raise :class:`EngineBusy` when somebody has taken the recording over."""
        if not self.guarded:
            return
        now = _read(self._path)
        if now is None or now.token != self._holder.token:
            taker = "somebody" if now is None else now.who
            raise EngineBusy(f"{taker} has taken over the recording into {self._path.parent}; it is not dumped here.")

    def release(self) -> None:
        """Let the next one record, unless somebody has taken over."""
        now = _read(self._path)
        if self.guarded and now is not None and now.token == self._holder.token:
            with suppress(OSError):
                self._path.unlink()


@contextmanager
def recording_lease(folder: Path, *, seconds: float, take_over: bool = False) -> Iterator[RecordingLease]:
    """Hold the lease of a folder for a recording of some seconds.

    Parameters
    ----------
    folder
    seconds
        Length of the recording.
    take_over
        Take the lease from whoever holds it; that recording ends without a dump.

    Raises
    ------
    EngineBusy
        Somebody else records.
    """
    path = folder / LEASE_FILE
    who = f"process {os.getpid()} on {socket.gethostname()}"
    mine = Holder(secrets.token_hex(8), who, time.time() + seconds + GRACE_S)
    held = _read(path)
    if held is not None and held.until_s > time.time() and not take_over:
        until = datetime.fromtimestamp(held.until_s, tz=UTC).strftime("%H:%M:%S UTC")
        raise EngineBusy(
            f"{held.who} records into {folder} (until {until} at the latest); a second start would throw its record "
            "away. Wait, or take over with --take-over."
        )
    lease = RecordingLease(path, mine, guarded=_write(path, mine, replace=path.exists()))
    try:
        yield lease
    finally:
        lease.release()


def _write(path: Path, holder: Holder, *, replace: bool) -> bool:
    """Write a lease; return False where the folder may not be written."""
    if replace:
        with suppress(OSError):
            path.unlink()
    draft = path.with_name(f"{path.name}-{holder.token}")
    try:
        draft.write_text(json.dumps(vars(holder)), encoding="utf-8")
        os.link(draft, path)  # whole or not at all, and never over another one
    except FileExistsError:
        raise EngineBusy(f"somebody else has begun to record into {path.parent} at this moment.") from None
    except OSError:
        return False
    finally:
        with suppress(OSError):
            draft.unlink()
    return True


def _read(path: Path) -> Holder | None:
    """Read a lease; a damaged one is none."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_LEASE_BYTES))
        until_s = min(float(found["until_s"]), time.time() + MAX_LEASE_S)
        return Holder(str(found["token"]), str(found["who"])[:200], until_s)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
