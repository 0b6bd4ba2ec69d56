"""The one place that decides whether a command's work is done here or by the service of ``--url``.

Plans, recordings and pushes are made where they are kept: a service plans, records and pushes itself. What only looks
at something (``evaluate``, ``diff``, ``export``, ``report``, ``size``, ``trace info``) works here, on copies of what a
service keeps.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.cli.options import ReadFlags
from api.cli.plan_options import PlanFlags
from api.cli.service_flags import ServiceFlags
from api.planning import plan_from_files
from api.store.identifiers import IDENTIFIER
from placement.errors import BadOption
from placement.plan import Plan

if TYPE_CHECKING:
    from api.client.connection import ServiceConnection

KINDS = ("trc_", "pln_")

Command = Callable[..., None]


def make_plan(
    inputs: Sequence[Path],
    asked: PlanFlags,
    read_with: ReadFlags,
    *,
    at: ServiceFlags,
    for_engine: str | None = None,
    test: tuple[Path, ...] = (),
    progress: Callable[[float], None] | None = None,
    on_stored: Callable[[str], None] = lambda plan_id: None,
) -> Plan:
    """Plan here, or have the service plan; either way the plan is the same. A service keeps it, under the id told.

    Raises
    ------
    CodedError
        The same, too: the service's problems have the codes of the command line.
    """
    request = asked.request(test=test)
    connection = at.connection()
    if connection is None:
        if for_engine is not None:
            raise BadOption("--for-engine names an engine of a service; give --url, or --current LAYOUT.")
        _require_no_ids((*inputs, *test))
        return plan_from_files(inputs, read_with.options(), request, progress=progress)
    from api.client.names import engine_named
    from api.client.plans import plan_there

    with connection as service:
        engine_id = None if for_engine is None else engine_named(service, for_engine)["id"]
        return plan_there(
            service, inputs, request, read=asdict(read_with), engine_id=engine_id, progress=progress,
            on_stored=on_stored,
        )  # fmt: skip


def on_local_copies(*names: str) -> Callable[[Command], Command]:
    """Let a command that reads files take ids of a service's plans and traces too.

    While the command runs, every id in its parameters ``names`` (paths, or lists of paths) is the path of a copy. The
    command's parameter ``at`` says which service is asked; it needs it for nothing else.

    Raises
    ------
    BadOption
        An id, and no service is named.
    CodedError
        What the service says.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(*, at: ServiceFlags, **given: Any) -> None:
            with tempfile.TemporaryDirectory(prefix="moeplan-fetched-") as folder:
                for name in names:
                    given[name] = _local(given[name], at=at, folder=Path(folder))
                command(at=at, **given)

        return run

    return decorate


def _local(value: Path | list[Path], *, at: ServiceFlags, folder: Path) -> Path | list[Path]:
    paths = [value] if isinstance(value, Path) else list(value)
    if not any(map(is_stored, paths)):
        return value
    connection = at.connection()
    if connection is None:
        _require_no_ids(paths)
        return value
    with connection as service:
        copies = [_fetched(service, path, folder) if is_stored(path) else path for path in paths]
    return copies[0] if isinstance(value, Path) else copies


def _require_no_ids(paths: Sequence[Path]) -> None:
    for path in filter(is_stored, paths):
        raise BadOption(
            f"{path} is the id of something that a service keeps; name the service with --url or MOEPLAN_URL."
        )


def is_stored(name: Path) -> bool:
    """Whether a name is the id of a stored plan or trace, and no file that is there."""
    return bool(IDENTIFIER.fullmatch(str(name))) and str(name).startswith(KINDS) and not name.exists()


def _fetched(service: ServiceConnection, name: Path, folder: Path) -> Path:
    if str(name).startswith("trc_"):
        copy = folder / f"{name}.parquet"
        service.download(f"/v1/traces/{name}/content", copy)
    else:
        copy = folder / f"{name}.json"
        service.download(f"/v1/plans/{name}/file", copy)
    return copy
