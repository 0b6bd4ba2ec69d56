"""The commands put together, and what every one of them does with bad news."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from api.cli.calibrate_command import calibrate
from api.cli.capture_command import capture
from api.cli.decisions_commands import app as decisions
from api.cli.demo import demo
from api.cli.doctor_command import doctor
from api.cli.engines_commands import app as engines
from api.cli.exit_codes import BAD_INPUT, DONE, INTERRUPTED, TERMINATED, exit_code_of
from api.cli.jobs_commands import app as jobs
from api.cli.keys_commands import app as keys
from api.cli.layout_commands import diff, export, report
from api.cli.output import complain, print_line, survive_any_text
from api.cli.plan_commands import compare, evaluate, plan
from api.cli.plans_commands import app as plans
from api.cli.push_commands import push, rollback
from api.cli.replay_command import replay
from api.cli.rollouts_commands import app as rollouts
from api.cli.sample_command import sample
from api.cli.schedules_commands import app as schedules
from api.cli.service_commands import db, serve, worker
from api.cli.size_command import size
from api.cli.stopping import Terminated, termination_unwinds
from api.cli.trace_commands import app as trace
from placement.errors import CodedError

app = typer.Typer(
    name="moeplan",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(trace, name="trace")
app.add_typer(db, name="db")
for name, group in {
    "engines": engines,
    "plans": plans,
    "rollouts": rollouts,
    "schedules": schedules,
    "decisions": decisions,
    "jobs": jobs,
    "keys": keys,
}.items():
    app.add_typer(group, name=name)
for command in (
    plan,
    evaluate,
    compare,
    size,
    calibrate,
    diff,
    export,
    report,
    replay,
    doctor,
    capture,
    sample,
    push,
    rollback,
    demo,
    serve,
    worker,
):
    app.command()(command)


def _show_version(asked: bool) -> None:
    if asked:
        print_line(f"moeplan {version('moeplan')}")
        raise typer.Exit


@app.callback()
def moeplan(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Plan where the experts of a Mixture-of-Experts model live, from what a live engine routes."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error becomes one sentence with a code on standard error."""
    survive_any_text()
    try:
        with termination_unwinds():
            code = _invoke(list(arguments) or ["--help"])
            sys.stdout.flush()
            return code
    except CodedError as error:
        complain(error.code, error.detail, remedies=error.remedies)
        return exit_code_of(error)
    except typer.TyperException as error:
        complain("USAGE", _usage_sentence(error))
        return BAD_INPUT
    except Terminated:
        complain("TERMINATED", "stopped by a signal; every output file is whole or as it was before.")
        return TERMINATED
    except KeyboardInterrupt:
        complain("INTERRUPTED", "stopped; every output file is whole or as it was before.")
        return INTERRUPTED
    except MemoryError:
        complain("OUT_OF_MEMORY", "this input needs more memory than the machine gives; try fewer windows.")
        return BAD_INPUT
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        _drop_standard_output()
        return DONE
    except OSError as error:
        # Files are checked where they are opened; what is left is standard output, or a disk that fails while read.
        where = f"{error.filename}: " if error.filename else ""
        complain("SYSTEM_REFUSED", f"{where}{(error.strerror or str(error)).lower()}.")
        _drop_standard_output()
        return BAD_INPUT


def _invoke(arguments: list[str]) -> int:
    # Not app(): it ends the process itself, and prints usage errors, Ctrl-C and broken pipes its own way.
    root = typer.main.get_command(app)
    try:
        with root.make_context("moeplan", arguments) as context:
            root.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return DONE


def _usage_sentence(error: typer.TyperException) -> str:
    said = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "moeplan"
    return f"{said[:1].lower()}{said[1:]}; {command} --help lists what there is."


def _drop_standard_output() -> None:
    """Point standard output elsewhere, so that what is left in its buffer does not fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
