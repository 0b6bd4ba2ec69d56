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
    """Run a server on a socket of its own and give its URL without a database name.

    The server refuses to run as root, so root runs it as the user postgres that its package makes.
    """
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    folder = Path(tempfile.mkdtemp(prefix="moeplan-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, user, user)
    data, log = folder / "data", folder / "log"

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            [str(part) for part in command], user=user if os.geteuid() == 0 else None, cwd=folder, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
        if done.returncode:
            server_log = log.read_text() if log.exists() else ""
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr}{server_log}")

    try:
        run(programs / "initdb", "-D", data, "-U", "moeplan", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        settings = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=200"
        run(programs / "pg_ctl", "-D", data, "-w", "-t", "60", "-l", log, "-o", settings, "start")
        try:
            yield f"postgresql://moeplan@/%s?host={folder}"
        finally:
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
