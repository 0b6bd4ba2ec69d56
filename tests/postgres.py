"""A real PostgreSQL for tests, started here and thrown away afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = "PostgreSQL is not installed (Debian: apt-get install postgresql); its half of the store's tests is left out."


def server_programs() -> Path | None:
    """Return the folder with initdb and pg_ctl, the newest where there are several."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


@contextmanager
def running_postgres(programs: Path) -> Iterator[str]:
    """Run a server on a socket of its own and give its URL without a database name."""
    with own_postgres(programs) as server:
        yield server.url


class OwnPostgres:
    """A server that tests may stop and start.

    The server refuses to run as root, so root runs it as the user postgres that its package makes.

    Attributes
    ----------
    url : str
        With %s for the name of a database.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self.url = f"postgresql://moeplan@/%s?host={folder}"
        self._programs, self._folder = programs, folder
        self._data, self._log = folder / "data", folder / "log"
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name

    def make(self) -> None:
        """Make its empty data folder."""
        if os.geteuid() == 0:
            shutil.chown(self._folder, self._user, self._user)
        self._run("initdb", "-D", self._data, "-U", "moeplan", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        settings = f"-k {self._folder} -c listen_addresses='' -c fsync=off -c max_connections=200"
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", self._log, "-o", settings, "start")

    def stop(self) -> None:
        """End it at once, as a crash does."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    @property
    def runs(self) -> bool:
        return (self._data / "postmaster.pid").exists()

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [str(self._programs / program), *(str(part) for part in arguments)],
            user=self._user if os.geteuid() == 0 else None, cwd=self._folder, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
        if done.returncode:
            server_log = self._log.read_text() if self._log.exists() else ""
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr}{server_log}")


@contextmanager
def own_postgres(programs: Path) -> Iterator[OwnPostgres]:
    """Run a server that may be stopped and started meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="moeplan-pg-"))
    server = OwnPostgres(programs, folder)
    try:
        server.make()
        server.start()
        try:
            yield server
        finally:
            if server.runs:
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
