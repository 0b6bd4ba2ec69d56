"""A real file system of a few megabytes, which can be filled and made read-only; only root may make one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MISSING = "Only root can mount a file system; tests of full and read-only disks are left out."


class SmallDisk:
    """A mounted file system in memory.

    Attributes
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fill = folder / "fill"

    def fill(self) -> None:
        """Leave no byte."""
        handle = os.open(self._fill, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            with suppress(OSError):
                while True:
                    os.write(handle, b"x" * 4096)
        finally:
            os.close(handle)
        if shutil.disk_usage(self.folder).free:
            raise RuntimeError(f"{self.folder} still has room")

    def make_room(self) -> None:
        self._fill.unlink()

    def read_only(self, *, on: bool) -> None:
        """Let nothing be written, root included, or let it be written again."""
        subprocess.run(["mount", "-o", f"remount,{'ro' if on else 'rw'}", self.folder], check=True)


def can_mount(folder: Path) -> bool:
    """Whether file systems can be mounted here: root in a container may not."""
    if os.geteuid() != 0:
        return False
    try:
        with small_disk(folder, mebibytes=1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def small_disk(folder: Path, *, mebibytes: int = 8) -> Iterator[SmallDisk]:
    """Mount a file system on a folder, which is made, while the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
