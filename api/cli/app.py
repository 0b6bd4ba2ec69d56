"""The commands put together, and what every one of them does with bad news."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from api.cli.demo import demo
from api.cli.engine_commands import capture, push, replay, rollback
from api.cli.exit_codes import BAD_INPUT, INTERRUPTED, exit_code_of
from api.cli.layout_commands import diff, export, report
from api.cli.plan_commands import compare, evaluate, plan
from api.cli.trace_commands import app as trace
from placement.errors import CodedError

app = typer.Typer(
    name="moeplan",
    help="Plan where the experts of a Mixture-of-Experts model live, from what a live engine routes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(trace, name="trace")
for command in (plan, evaluate, compare, diff, export, report, replay, capture, push, rollback, demo):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error becomes one sentence with a code on standard error."""
    try:
        app(arguments)
    except CodedError as error:
        print(f"{error.code}: {error.detail}", file=sys.stderr)
        for number, remedy in enumerate(error.remedies, start=1):
            print(f"  {number}. {remedy}", file=sys.stderr)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        print("INTERRUPTED: stopped; nothing was written.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except MemoryError:
        print("OUT_OF_MEMORY: this input needs more memory than the machine gives; try fewer windows.", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        # The reader of our output (head, less) went away; point the descriptor elsewhere so that exit is quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
