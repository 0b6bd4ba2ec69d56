"""One recording into a dump folder at a time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from profiler.engine.recording_lease import LEASE_FILE, recording_lease
from profiler.errors import EngineBusy
from tests.case_files import case


def held_by(folder: Path, *, until_s: float) -> None:
    text = json.dumps({"token": "other", "who": "process 1 on elsewhere", "until_s": until_s})
    (folder / LEASE_FILE).write_text(text)


def test_a_lease_is_there_while_it_is_held_and_gone_after(tmp_path: Path) -> None:
    with recording_lease(tmp_path, seconds=1) as lease:
        assert [path.name for path in tmp_path.iterdir()] == [LEASE_FILE]
        lease.require_held()
    assert list(tmp_path.iterdir()) == []


def test_case_p37_a_second_recording_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with (
        recording_lease(tmp_path, seconds=1) as first,
        pytest.raises(EngineBusy, match="--take-over") as caught,
        recording_lease(tmp_path, seconds=1),
    ):
        pass
    assert caught.value.code == case("P37")["expect"]["error_code"]
    first.release()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 3000, '{"token": 1}', '{"token": "x", "who": "y", "until_s": "z"}']
)
def test_a_damaged_lease_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / LEASE_FILE).write_text(text)
    with recording_lease(tmp_path, seconds=1) as lease:
        lease.require_held()


def test_a_lease_whose_time_is_over_is_replaced(tmp_path: Path) -> None:
    held_by(tmp_path, until_s=time.time() - 1)
    with recording_lease(tmp_path, seconds=1) as lease:
        lease.require_held()


def test_a_lease_without_an_end_holds_for_a_day_at_most(tmp_path: Path) -> None:
    held_by(tmp_path, until_s=float("1e300"))
    with pytest.raises(EngineBusy, match="elsewhere"), recording_lease(tmp_path, seconds=1):
        pass


def test_whoever_is_taken_over_notices_and_leaves_the_new_lease_alone(tmp_path: Path) -> None:
    with recording_lease(tmp_path, seconds=1) as first:
        with recording_lease(tmp_path, seconds=1, take_over=True) as second:
            with pytest.raises(EngineBusy, match="taken over"):
                first.require_held()
            first.release()
            second.require_held()
        with pytest.raises(EngineBusy, match="somebody"):
            first.require_held()


def test_a_folder_that_may_not_be_written_is_recorded_into_unguarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)  # tests may run as root, whom no permission stops
    with recording_lease(tmp_path, seconds=1) as lease:
        assert not lease.guarded
        lease.require_held()
    assert list(tmp_path.iterdir()) == []
