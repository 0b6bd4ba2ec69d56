"""Outputs are whole or absent."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from profiler.errors import InputNotFound, OutputNotWritable, UnreadableDump
from profiler.files import atomic_output, content_hash, require_regular_file, write_bytes, write_text


def test_a_file_appears_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "plan.json", "größer")
    assert (tmp_path / "plan.json").read_text(encoding="utf-8") == "größer"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_failure_inside_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old")

    def fail_half_way() -> None:
        with atomic_output(target) as temporary:
            temporary.write_text("half of the n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_the_target_is_untouched_until_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "trace.parquet"
    with atomic_output(target) as temporary:
        temporary.write_bytes(b"content")
        assert not target.exists()
        assert temporary.parent == target.parent
    assert target.read_bytes() == b"content"


def test_an_output_takes_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    write_bytes(tmp_path / "written", b"x")
    assert (tmp_path / "written").stat().st_mode == plain.stat().st_mode


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("where", ["missing/plan.json", "", "/dev/null", "loop"])
def test_targets_that_cannot_be_written_are_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutputNotWritable):
        write_text(tmp_path / where, "x")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputNotWritable, match="permission denied"):
        write_text(tmp_path / "plan.json", "x")


def test_only_regular_files_are_inputs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UnreadableDump, match="no regular file"):
            require_regular_file(path)
    with pytest.raises(InputNotFound, match="absent"):
        require_regular_file(tmp_path / "absent")


def test_the_hash_of_one_file_is_plain_sha256(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert content_hash([path]) == hashlib.sha256(b"abc").hexdigest()


def test_the_hash_of_several_files_knows_names_and_contents_but_not_the_order(tmp_path: Path) -> None:
    one, two = tmp_path / "rank0", tmp_path / "rank1"
    one.write_bytes(b"a")
    two.write_bytes(b"b")
    together = content_hash([one, two])
    assert together == content_hash([two, one])
    one.write_bytes(b"b")
    two.write_bytes(b"a")
    assert content_hash([one, two]) != together
