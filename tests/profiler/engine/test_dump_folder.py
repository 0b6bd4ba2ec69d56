"""Which files of a folder are the dump that was asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from profiler.engine.dump_folder import CLOCK_TOLERANCE_S, DumpFolder, Expected
from profiler.errors import DumpAmbiguous, DumpIncomplete, DumpNotFound, InputNotFound, UnreadableDump
from profiler.writers.sglang_dump import rank_file_name, stat_file_name, write_per_pass, write_stat

NOW_S = 1_800_000_000.25
STAT = Expected(ranks=None, not_before_s=float(int(NOW_S)))
TWO_RANKS = Expected(ranks=2, not_before_s=float(int(NOW_S)))
SHORT_S = 1.0


def write_one_stat(folder: Path, time_s: float, count: int = 1) -> Path:
    path = folder / stat_file_name(time_s)
    write_stat(path, np.full((2, 3, 4), count, dtype=np.int32))
    return path


def write_rank(folder: Path, time_s: float, rank: int) -> Path:
    path = folder / rank_file_name(time_s, rank)
    write_per_pass(path, [(0, np.ones((3, 4), dtype=np.int32))], np.tile(np.arange(4), (3, 1)), rank=rank)
    return path


def found(
    folder: Path,
    expected: Expected,
    written: Callable[[], object],
    *,
    same: Callable[[Sequence[Path]], bool] = lambda paths: False,
    limit_s: float = SHORT_S,
) -> tuple[Path, ...]:
    """Look into a folder, let files be written, and return the dump that is found."""
    dumps = DumpFolder(folder)
    before = dumps.listing()
    written()
    return dumps.wait_for_dump(before, expected, limit_s=limit_s, same=same)


def test_the_new_file_is_taken_and_old_ones_are_not(tmp_path: Path) -> None:
    write_one_stat(tmp_path, NOW_S - 0.1)
    (tmp_path / "expert_distribution_recorder_x.pt").write_bytes(b"")
    paths = found(tmp_path, STAT, lambda: write_one_stat(tmp_path, NOW_S))
    assert [path.name for path in paths] == [stat_file_name(NOW_S)]


def test_rank_files_are_waited_for_and_ordered_by_rank(tmp_path: Path) -> None:
    def write() -> None:
        write_rank(tmp_path, NOW_S, 1)
        threading.Timer(0.4, write_rank, (tmp_path, NOW_S + 0.3, 0)).start()

    paths = found(tmp_path, TWO_RANKS, write, limit_s=20)
    assert [path.name for path in paths] == [rank_file_name(NOW_S + 0.3, 0), rank_file_name(NOW_S, 1)]


def test_a_file_that_is_still_being_written_is_waited_for(tmp_path: Path) -> None:
    def write() -> None:
        path = write_one_stat(tmp_path, NOW_S)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        threading.Timer(0.5, path.write_bytes, (whole,)).start()

    (path,) = found(tmp_path, STAT, write, limit_s=20)
    assert DumpFolder(tmp_path).listing()[path.name][0] == path.stat().st_size
    assert path.read_bytes()[-22:-18] == b"PK\x05\x06"


def test_a_file_that_is_never_finished_is_named(tmp_path: Path) -> None:
    def write() -> None:
        path = write_one_stat(tmp_path, NOW_S)
        path.write_bytes(path.read_bytes()[:-30])

    with pytest.raises(DumpIncomplete, match=r"recorder_1800000000\.25\.pt is still not whole"):
        found(tmp_path, STAT, write)


def test_an_empty_file_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(DumpIncomplete, match="not whole"):
        found(tmp_path, STAT, lambda: (tmp_path / stat_file_name(NOW_S)).touch())


def test_a_rank_that_writes_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DumpIncomplete, match=r"ranks \[0\] of 2 wrote no file"):
        found(tmp_path, TWO_RANKS, lambda: write_rank(tmp_path, NOW_S, 1))


def test_nothing_new_names_the_variable_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound, match="SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"):
        found(tmp_path, STAT, lambda: None)


def test_a_stale_file_that_is_copied_in_late_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound, match="appeared, but was recorded at another time"):
        found(tmp_path, STAT, lambda: write_one_stat(tmp_path, NOW_S - CLOCK_TOLERANCE_S - 60))


def test_a_clock_that_is_a_little_off_does_no_harm(tmp_path: Path) -> None:
    assert len(found(tmp_path, STAT, lambda: write_one_stat(tmp_path, NOW_S - CLOCK_TOLERANCE_S + 1))) == 1


def test_without_the_engines_clock_every_new_file_counts(tmp_path: Path) -> None:
    assert len(found(tmp_path, Expected(None, None), lambda: write_one_stat(tmp_path, 5.0))) == 1


def test_a_dump_of_another_mode_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound, match="in another mode"):
        found(tmp_path, STAT, lambda: write_rank(tmp_path, NOW_S, 0))


def test_two_dumps_at_once_are_told_apart_only_by_their_content(tmp_path: Path) -> None:
    def write() -> None:
        write_one_stat(tmp_path, NOW_S, 1)
        write_one_stat(tmp_path, NOW_S + 0.1, 2)

    with pytest.raises(DumpAmbiguous, match="several dumps at once"):
        found(tmp_path, STAT, write)


def test_two_files_with_the_same_record_are_one_dump(tmp_path: Path) -> None:
    def write() -> None:
        write_one_stat(tmp_path, NOW_S, 1)
        write_one_stat(tmp_path, NOW_S + 0.1, 1)

    (path,) = found(tmp_path, STAT, write, same=lambda paths: len(paths) == 2)
    assert path.name == stat_file_name(NOW_S)


def test_a_rank_that_comes_twice_is_of_two_dumps(tmp_path: Path) -> None:
    def write() -> None:
        for time_s, rank in ((NOW_S, 0), (NOW_S + 0.1, 1), (NOW_S + 0.2, 0)):
            write_rank(tmp_path, time_s, rank)

    with pytest.raises(DumpAmbiguous):
        found(tmp_path, TWO_RANKS, write)


def test_what_others_dumped_meanwhile_is_seen(tmp_path: Path) -> None:
    dumps = DumpFolder(tmp_path)
    before = dumps.listing()
    write_one_stat(tmp_path, time.time())
    assert len(dumps.appeared(before, Expected(None, None))) == 1
    assert dumps.appeared(dumps.listing(), Expected(None, None)) == []


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="as it is seen from here"):
        DumpFolder(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableDump, match="not a directory"):
        DumpFolder(tmp_path / "file")
