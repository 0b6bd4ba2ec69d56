"""The ``moeplan`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from api.cli.exit_codes import INTERRUPTED

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code; see :func:`api.cli.app.run`."""
    try:
        # Late: loading what the commands need takes a second, in which Ctrl-C must end as quietly as later.
        from api.cli.app import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("INTERRUPTED: stopped before anything was done.", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)
