"""Recording with SGLang's own recorder, where the plugin is not installed: start, stop, dump, and find the files.

Source: ``srt/eplb/expert_distribution.py``, SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placement.errors import BadOption, EmptyProfile
from placement.notice import Notice
from profiler.engine.client import EngineClient
from profiler.engine.dump_folder import DumpFolder, Expected
from profiler.engine.recording_lease import RecordingLease, recording_lease
from profiler.engine.server_facts import DETAIL_MODES, ServerFacts
from profiler.errors import (
    DumpForeign,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineLostDuringDump,
    EngineUnreachable,
    RecorderDisabled,
    RecordingNeedsLimit,
)
from profiler.inputs import OpenedInput, open_inputs
from profiler.readers.options import ReadOptions
from profiler.trace import CountChunk, TokenChunk, TraceHeader

MAX_DETAIL_S = 60.0
"""Longest recording in a mode that keeps every pass: SGLang never frees any of it before a dump, and writes it in one
piece."""

FILES_LIMIT_S = 60.0
DUMP_TIMEOUT_S = 600.0
ALIVE_LIMIT_S = 5.0
"""How long an engine may take to answer again after its dump failed."""

RECORDER_FLAG = "--expert-distribution-recorder-mode stat"


@dataclass(frozen=True, eq=False)
class DumpCapture:
    """What was recorded: a :class:`profiler.trace.TraceReader` over the engine's files, which stay where they are.

    Attributes
    ----------
    reader : OpenedInput
    facts : ServerFacts
    files : tuple of Path
        By rank.
    own_notices : tuple of Notice
        About the recording; :attr:`notices` has those of the files, too.
    """

    reader: OpenedInput
    facts: ServerFacts
    files: tuple[Path, ...]
    own_notices: tuple[Notice, ...]

    @property
    def name(self) -> str:
        return self.reader.name

    @property
    def header(self) -> TraceHeader:
        header = self.reader.header
        engine = "moeplan-replay" if self.facts.simulated else header.engine
        model = header.model or self.facts.model
        return replace(header, engine=engine, engine_version=self.facts.version, model=model)

    @property
    def content_hash(self) -> str:
        return self.reader.content_hash

    @property
    def notices(self) -> tuple[Notice, ...]:
        return (*self.own_notices, *self.reader.notices)

    def chunks(self) -> Iterator[CountChunk | TokenChunk]:
        return self.reader.chunks()


def capture_dumps(
    client: EngineClient,
    folder: Path,
    *,
    seconds: float | None,
    options: ReadOptions | None = None,
    take_over: bool = False,
    files_limit_s: float = FILES_LIMIT_S,
) -> DumpCapture:
    """Record for some seconds with the engine's own recorder and read what it wrote.

    The recorder is stopped at the end, whatever the end is, unless the engine records for its own metrics.

    Parameters
    ----------
    client
    folder
        The engine's dump folder, shared or local.
    seconds
        How long to record; at most :data:`MAX_DETAIL_S` in the modes ``per_pass`` and ``per_token``.
    options
        For reading the files.
    take_over
        Take the lease of the folder from whoever holds it.
    files_limit_s
        How long to wait for the files after the engine's answer.

    Raises
    ------
    RecorderDisabled, RecordingNeedsLimit, BadOption
        Nothing was started.
    EngineBusy
        Somebody else records into this folder, or has taken over; or the engine's own balancer uses the recorder.
    EngineLostDuringDump
        The engine ended while it dumped. It is not asked again.
    DumpNotFound, DumpIncomplete, DumpAmbiguous, DumpForeign
        The engine's files are not there, not whole, mixed with others, or of another engine.
    EmptyProfile
        Nothing was routed meanwhile.
    EngineError
        As all of :class:`profiler.engine.client.EngineClient`.
    """
    facts = client.facts()
    length_s = _checked_length(client, facts, seconds)
    expected = _expected_files(facts)
    dumps = DumpFolder(folder)
    with recording_lease(folder, seconds=length_s, take_over=take_over) as lease:
        before = dumps.listing()
        with _recording(client, facts):
            time.sleep(length_s)
            lease.require_held()
        asked_s = client.clock_s()
        notices = list(_disturbances(dumps.appeared(before, Expected(expected, None)), lease))
        before = dumps.listing()
        notices += _dump_once(client)
        files = dumps.wait_for_dump(before, Expected(expected, asked_s), limit_s=files_limit_s, same=_hold_the_same)
    (reader,) = open_inputs(files, options or ReadOptions())
    _require_ours(reader, facts)
    _require_traffic(client, reader)
    notices += _ring_notices(reader, facts)
    notices += _overlap_notices(facts)
    return DumpCapture(reader, facts, files, tuple(notices))


def _checked_length(client: EngineClient, facts: ServerFacts, seconds: float | None) -> float:
    """Refuse recordings that cannot be made, before anything is started."""
    if facts.recorder_mode is None:
        raise RecorderDisabled(f"{client.url} was started without its recorder; start it with {RECORDER_FLAG}.")
    if facts.rebalances:
        raise EngineBusy(
            f"{client.url} was started with --enable-eplb: its own balancer uses the recorder, and each would throw "
            "the other's record away; start it without, or record with moeplan's plugin."
        )
    if seconds is not None and not 0 < seconds < math.inf:
        raise BadOption(f"seconds is {seconds}; it must be above 0 and finite.")
    if facts.recorder_mode in DETAIL_MODES and (seconds is None or seconds > MAX_DETAIL_S):
        asked = "without a limit" if seconds is None else f"for {seconds:g} s"
        raise RecordingNeedsLimit(
            f"{client.url} records {facts.recorder_mode}, which keeps every forward pass in memory until it is dumped: "
            f"recording {asked} could end the engine. Record at most {MAX_DETAIL_S:g} s, or start it with "
            f"{RECORDER_FLAG}."
        )
    if seconds is None:
        raise BadOption("give the seconds to record: SGLang's own recorder counts no steps.")
    return seconds


def _expected_files(facts: ServerFacts) -> int | None:
    """Return the number of rank files, None for the one file of mode ``stat``."""
    if facts.recorder_mode not in DETAIL_MODES:
        return None
    if facts.ep_size != facts.tp_size * facts.pp_size:
        raise BadOption(
            f"the engine has {facts.tp_size * facts.pp_size} ranks in {facts.ep_size} EP ranks; several write the file "
            f"of one EP rank, so {facts.recorder_mode} dumps cannot be told apart. Start it with {RECORDER_FLAG}."
        )
    return facts.ep_size


@contextmanager
def _recording(client: EngineClient, facts: ServerFacts) -> Iterator[None]:
    """Start the recorder and stop it at the end; a recorder that runs for the engine's metrics is left running."""
    client.start_record()
    try:
        yield
    except BaseException as first:
        _stop_after(first, client, facts)
        raise
    if not facts.recorder_always_on:
        client.stop_record()


def _stop_after(first: BaseException, client: EngineClient, facts: ServerFacts) -> None:
    """Stop the recorder after an error, unless the recording is somebody else's now; ``first`` is reported first."""
    if facts.recorder_always_on or isinstance(first, EngineBusy):
        return
    try:
        client.stop_record()
    except EngineError as error:
        first.add_note(f"The recorder could not be stopped either: {error.detail}")


def _dump_once(client: EngineClient) -> list[Notice]:
    """Ask for the dump, once: a dump that has ended the engine would end it again.

    Raises
    ------
    EngineLostDuringDump
    EngineRefused
        Another key is wanted.
    """
    try:
        client.dump_record(timeout_s=DUMP_TIMEOUT_S)
    except (EngineUnreachable, EngineFailed, EngineAnswerInvalid) as lost:
        try:
            client.wait_alive(limit_s=ALIVE_LIMIT_S)
        except EngineError:
            raise EngineLostDuringDump(
                f"{client.url} ended while it wrote its record ({lost.detail.rstrip('.')}): the record was probably "
                "too large for its memory. It was asked once and will not be asked again.",
                remedies=("record for a shorter time", f"start the engine with {RECORDER_FLAG}"),
            ) from None
        return [Notice("DUMP_ANSWER_LOST", f"the engine's answer was lost, its files were not: {lost.detail}")]
    return []


def _disturbances(foreign: Sequence[str], lease: RecordingLease) -> Iterator[Notice]:
    if foreign:
        yield Notice(
            "RECORDING_DISTURBED",
            f"{foreign[0]} was dumped while recording; if it is of this engine, only what came after it is in ours.",
        )
    if not lease.guarded:
        yield Notice(
            "RECORDING_UNGUARDED",
            "the dump folder may not be written, so nobody else could see this recording; a second start would have "
            "thrown its record away unnoticed.",
        )


def _hold_the_same(paths: Sequence[Path]) -> bool:
    """Compare stat dumps: every rank 0 of several EP groups writes the same sum."""
    first, *others = [open_inputs([path], ReadOptions())[0] for path in paths]
    return all(_totals(first) == _totals(other) for other in others)


def _totals(reader: OpenedInput) -> list[int]:
    chunks = [chunk.tokens_LSE for chunk in reader.chunks() if isinstance(chunk, CountChunk)]
    return [] if not chunks else np.sum(chunks, axis=0).ravel().tolist()


def _require_ours(reader: OpenedInput, facts: ServerFacts) -> None:
    """Refuse a dump whose content is of another recorder mode than the engine's."""
    mode = reader.facts().get("recorder_mode")
    ours = "stat" if facts.recorder_mode not in DETAIL_MODES else facts.recorder_mode
    if mode is not None and mode != ours:
        raise DumpForeign(f"{reader.name} holds a record of mode {mode}; this engine records {facts.recorder_mode}.")


def _require_traffic(client: EngineClient, reader: OpenedInput) -> None:
    for chunk in reader.chunks():
        if bool(chunk.tokens_LSE.any()) if isinstance(chunk, CountChunk) else len(chunk.request_id_T) > 0:
            return
    raise EmptyProfile(
        f"{reader.name} of {client.url} is empty: no token was routed while it recorded, or somebody else has started, "
        "stopped or dumped the recorder meanwhile."
    )


def _ring_notices(reader: OpenedInput, facts: ServerFacts) -> Iterator[Notice]:
    steps = reader.facts().get("used_steps")
    if facts.recorder_ring_steps is not None and steps == facts.recorder_ring_steps:
        yield Notice(
            "RING_FULL",
            f"the recorder keeps {steps} steps, and all are used: what came before the last {steps} is lost; a longer "
            "ring is --expert-distribution-recorder-buffer-size.",
        )


def _overlap_notices(facts: ServerFacts) -> Iterator[Notice]:
    """Say what no reader of the dump can tell: which of its decode tokens the engine threw away."""
    if facts.overlaps and not facts.simulated:
        yield Notice(
            "UNUSED_TOKENS_COUNTED",
            "the engine launches a step before it knows which requests have ended, and its recorder counts the token "
            "more that it then computes for each: up to one per request that ended. moeplan's plugin leaves them out; "
            "without it, --disable-overlap-schedule does.",
        )
