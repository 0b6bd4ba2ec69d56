"""Folders: rank files of one recording belong together, and every recording is a window of its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from profiler.errors import InputNotFound, InputsDisagree, UnknownFormat
from profiler.readers.sglang_pt import group_recordings
from profiler.trace import CountChunk, TokenChunk
from profiler.writers.sglang_dump import rank_file_name, stat_file_name, write_per_pass, write_per_token, write_stat
from tests.profiler.readers.sglang_files import count, opened, prefill, rng, route, trivial_layout
from tests.profiler.recordings import codes, counts_by_window, tokens_of, total_LE

LAYERS, EXPERTS = 2, 8
IN_PLACE = trivial_layout(layers=LAYERS, experts=EXPERTS)
UNIFORM = np.full((LAYERS, EXPERTS), 1 / EXPERTS)


def counts(seed: int) -> np.ndarray:
    return rng(seed).integers(1, 50, size=(3, LAYERS, EXPERTS))


def names(groups: list[tuple[Path, ...]]) -> list[list[str]]:
    return [[path.name for path in group] for group in groups]


def test_files_are_grouped_by_time_and_rank() -> None:
    """Each rank stamps its file with its own clock; the same rank again is the next recording."""
    first = [rank_file_name(100.5 + rank / 10, rank) for rank in (0, 1, 2)]
    second = [rank_file_name(107.0 - rank / 10, rank) for rank in (0, 1, 2)]
    stats = [stat_file_name(103.25), "stat_mine.pt"]
    mixed = [second[2], first[1], stats[1], first[0], second[0], stats[0], first[2], second[1]]
    groups = names(group_recordings(Path("folder") / name for name in mixed))
    assert groups == [[stats[0]], [stats[1]], first, second]


def test_recordings_that_lack_ranks_are_not_filled_from_each_other() -> None:
    """Rank 1 of the first and rank 0 of the second recording are missing; they are an hour apart."""
    alone = [Path(rank_file_name(1000.0, 0)), Path(rank_file_name(4600.0, 1))]
    assert names(group_recordings(alone)) == [[path.name] for path in alone]


def test_numbers_in_names_sort_as_numbers() -> None:
    files = [Path(rank_file_name(9.5, rank)) for rank in range(12)]
    assert group_recordings(reversed(files)) == [tuple(files)]


def test_stat_dumps_of_a_folder_are_windows(tmp_path: Path) -> None:
    for seed in range(3):
        write_stat(tmp_path / f"stat_{seed}.pt", counts(seed))
    reader = opened(tmp_path)
    windows = counts_by_window(reader)
    assert list(windows) == ["stat_0.pt", "stat_1.pt", "stat_2.pt"]
    for seed, counts_LSE in enumerate(windows.values()):
        np.testing.assert_array_equal(counts_LSE[:, 0], counts(seed).sum(axis=0))
    assert reader.name == tmp_path.name
    assert len(reader.content_hash) == 64
    reader.require_complete()


def test_token_recordings_of_a_folder_are_windows_with_requests_of_their_own(tmp_path: Path) -> None:
    own = {
        time: [route(rng(rank + int(time)), UNIFORM, tokens=9, top_k=2) for rank in range(2)] for time in (5.0, 90.0)
    }
    for time, by_rank in own.items():
        for rank, experts in enumerate(by_rank):
            path = tmp_path / rank_file_name(time, rank)
            write_per_token(path, [prefill(4, experts, lengths=[4, 5])], IN_PLACE, rank=rank)
    reader = opened(tmp_path)
    chunks = [chunk for chunk in reader.chunks() if isinstance(chunk, TokenChunk)]
    assert [chunk.window for chunk in chunks] == [f"expert_distribution_recorder_{time}" for time in own]
    assert reader.header.source_ranks == 2
    tokens = tokens_of(reader)
    assert len(set(tokens["request_id_T"].tolist())) == 8
    assert len(set(tokens["step_T"].tolist())) == 2
    expected = np.concatenate([experts for by_rank in own.values() for experts in by_rank], axis=1)
    np.testing.assert_array_equal(tokens["topk_LTK"], expected)


def test_sources_of_a_folder_are_known_when_all_recordings_know_them(tmp_path: Path) -> None:
    for time, ranks in ((5.0, 2), (90.0, 1)):
        for rank in range(ranks):
            slots = count(route(rng(rank), UNIFORM, tokens=20, top_k=2), EXPERTS)
            write_per_pass(tmp_path / rank_file_name(time, rank), [(1, slots)], IN_PLACE, rank=rank)
    reader = opened(tmp_path)
    assert reader.header.source_ranks is None
    chunks = [chunk for chunk in reader.chunks() if isinstance(chunk, CountChunk)]
    assert {chunk.tokens_LSE.shape for chunk in chunks} == {(LAYERS, 1, EXPERTS)}
    assert int(total_LE(reader).sum()) == 3 * 20 * 2 * LAYERS


def test_every_recordings_warnings_are_told(tmp_path: Path) -> None:
    for time in (5.0, 90.0):
        slots = count(route(rng(1), UNIFORM, tokens=20, top_k=2), EXPERTS)
        write_per_pass(tmp_path / rank_file_name(time, 1), [(1, slots)], IN_PLACE, rank=1)
    reader = opened(tmp_path)
    assert codes(reader.notices) == ["MISSING_RANKS", "MISSING_RANKS"]


def test_recordings_of_different_models_do_not_mix(tmp_path: Path) -> None:
    write_stat(tmp_path / "a.pt", counts(0))
    write_stat(tmp_path / "b.pt", np.ones((1, LAYERS, EXPERTS + 1), dtype=np.int64))
    with pytest.raises(InputsDisagree, match="experts 9"):
        opened(tmp_path)


def test_counts_and_tokens_do_not_mix(tmp_path: Path) -> None:
    write_stat(tmp_path / "a.pt", counts(0))
    experts = route(rng(), UNIFORM, tokens=9, top_k=2)
    write_per_token(tmp_path / rank_file_name(5.0, 0), [prefill(1, experts)], IN_PLACE, rank=0)
    with pytest.raises(InputsDisagree, match="kind"):
        opened(tmp_path)


def test_a_stat_dump_among_rank_files_is_not_one_of_them(tmp_path: Path) -> None:
    experts = route(rng(), UNIFORM, tokens=9, top_k=2)
    write_per_token(tmp_path / rank_file_name(5.0, 0), [prefill(1, experts)], IN_PLACE, rank=0)
    write_stat(tmp_path / rank_file_name(5.0, 1), counts(0))
    with pytest.raises(InputsDisagree, match="another kind"):
        opened(tmp_path)


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    write_stat(tmp_path / "a.pt", counts(0))
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / ".hidden.pt").write_text("a dump that is being written")
    (tmp_path / "more").mkdir()
    assert opened(tmp_path).name == tmp_path.name


def test_the_present_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_stat(tmp_path / "a.pt", counts(0))
    write_stat(tmp_path / "b.pt", counts(1))
    monkeypatch.chdir(tmp_path)
    assert opened(Path(os.curdir)).name == tmp_path.name


def test_folders_without_dumps_and_missing_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match=r"no \.pt file"):
        opened(tmp_path)
    with pytest.raises(InputNotFound):
        opened(tmp_path / "missing")


def test_equal_recordings_have_equal_hashes_wherever_they_lie(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        write_stat(tmp_path / folder / "a.pt", counts(0))
        write_stat(tmp_path / folder / "b.pt", counts(1))
    one, other = opened(tmp_path / "one"), opened(tmp_path / "other")
    assert one.content_hash == other.content_hash
    write_stat(tmp_path / "other" / "b.pt", counts(2))
    assert opened(tmp_path / "other").content_hash != one.content_hash
