"""Stored files under the names that readers go by."""

from __future__ import annotations

import shutil
from pathlib import Path

from api.jobs.linked_files import file_name_of, linked
from profiler.inputs import recordings


def stored(folder: Path, name: str, content: str) -> dict[str, str]:
    """A file by its content, in a folder of its own, as the store keeps it."""
    path = folder / content / "stored"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"layer_id,expert_id,count\n0,0,{content}\n")
    return {"name": name, "path": str(path)}


def test_rank_files_are_one_recording_wherever_they_are_stored(tmp_path: Path) -> None:
    files = linked([stored(tmp_path, f"rank{rank}.csv", str(rank)) for rank in range(3)], tmp_path / "evening")
    (recording,) = recordings(files)
    assert recording.name == "evening"
    assert [file.name for file in recording.files] == ["rank0.csv", "rank1.csv", "rank2.csv"]


def test_equal_files_of_two_ranks_stay_two(tmp_path: Path) -> None:
    files = linked([stored(tmp_path, f"rank{rank}.csv", "7") for rank in range(2)], tmp_path / "files")
    (recording,) = recordings(files)
    assert len(recording.files) == 2


def test_the_stored_file_is_never_changed_through_its_link(tmp_path: Path) -> None:
    one = stored(tmp_path, "rank0.csv", "7")
    linked([one, {**one, "name": "rank1.csv"}], tmp_path / "files")
    shutil.rmtree(tmp_path / "files")
    assert Path(one["path"]).read_text().endswith("0,0,7\n")


def test_names_of_people_become_file_names() -> None:
    for name, expected in (
        ("tiny_moe.npz", "tiny_moe.npz"), ("counts of the evening.json", "counts-of-the-evening.json"),
        ("../../etc/passwd", "etc-passwd"), ("..", "x"), ("", "x"), ("日本", "x"), (".hidden", "hidden"),
    ):  # fmt: skip
        assert file_name_of(name, otherwise="x") == expected
    assert len(file_name_of("a" * 500, otherwise="x")) == 180
