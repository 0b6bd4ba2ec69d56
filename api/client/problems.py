"""Problems of a service as the errors of the command line: the same class, so the same exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from api import errors as _ours  # noqa: F401  (a class must be there to be found by its code)
from api.errors import ServiceRefused
from placement.errors import CodedError
from profiler import errors as _theirs  # noqa: F401

CODE = re.compile(r"[A-Z][A-Z0-9_]{0,79}")


def error_of(problem: Mapping[str, Any]) -> CodedError:
    """Return the error that a problem, or the error of a job, tells of.

    Parameters
    ----------
    problem
        ``code``, ``detail`` and ``remedies``, as sent.
    """
    code, detail = str(problem.get("code", "")), str(problem.get("detail", ""))
    listed = problem.get("remedies")
    remedies = tuple(str(each) for each in listed) if isinstance(listed, list) else ()
    kind = next((each for each in _tree(CodedError) if each.code == code), None)
    if kind is not None and kind.__init__ is CodedError.__init__:
        return kind(detail, remedies=remedies)
    return ServiceRefused(detail, code=code if CODE.fullmatch(code) else ServiceRefused.code, remedies=remedies)


def _tree(kind: type[CodedError]) -> Iterator[type[CodedError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)
