"""Errors as RFC 9457 problem details, with the same codes as the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from api import errors as ours
from placement.errors import CodedError, InvalidInput
from profiler import errors as theirs
from profiler.files import disk_full

MEDIA_TYPE = "application/problem+json"

STATUS: Mapping[type[CodedError], int] = {
    ours.KeyMissing: 401,
    ours.KeyRefused: 401,
    ours.SessionOver: 401,
    ours.AdminNeeded: 403,
    ours.CsrfTokenWrong: 403,
    ours.NotFound: 404,
    ours.NameTaken: 409,
    ours.WrongState: 409,
    ours.ApprovalNeeded: 409,
    ours.EngineInUse: 409,
    ours.IdempotencyKeyReused: 409,
    ours.SecretMissing: 409,
    ours.VersionChanged: 412,
    ours.TooLarge: 413,
    ours.VersionNeeded: 428,
    ours.RequestError: 422,
    ours.EngineResting: 503,
    ours.EngineCallsFull: 503,
    ours.DatabaseUnreachable: 503,
    ours.FilesUnreachable: 503,
    ours.StateError: 500,
    InvalidInput: 422,
    theirs.UnreadableInput: 422,
    theirs.ExportFormatUnknown: 422,
    theirs.EngineError: 502,
    theirs.OutputNotWritable: 507,
    CodedError: 422,
}
"""Status of an error: that of the first class of its tree that is listed."""

CODES: Mapping[int, str] = {
    400: "BAD_REQUEST", 404: "NO_SUCH_ROUTE", 405: "METHOD_NOT_ALLOWED", 406: "NOT_ACCEPTABLE", 413: "TOO_LARGE",
    415: "MEDIA_TYPE_UNKNOWN",
}  # fmt: skip
"""Codes of what the web framework refuses by itself."""

RETRY_AFTER_S = 5

log = structlog.get_logger("moeplan.http")


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:moeplan:error:SLOTS_NOT_DIVISIBLE"])
    title: str = Field(examples=["Experts + redundant slots is not a multiple of the number of GPUs."])
    status: int = Field(examples=[422])
    detail: str = Field(description="What was found, and the next valid value.")
    code: str = Field(description="The same as on the command line.", examples=["SLOTS_NOT_DIVISIBLE"])
    remedies: list[str] = Field(default_factory=list, description="What can be done.")
    request_id: str | None = Field(default=None, description="Also in the header X-Request-ID and in the logs.")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI descriptions of problems, for a route's ``responses``."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def status_of(error: CodedError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_response(
    request: Request,
    *,
    status: int,
    code: str,
    detail: str,
    title: str = "",
    headers: Mapping[str, str] | None = None,
    remedies: tuple[str, ...] = (),
) -> JSONResponse:
    """Build the answer."""
    problem = Problem(
        type=f"urn:moeplan:error:{code}",
        title=title or HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        remedies=list(remedies),
        request_id=getattr(request.state, "request_id", None),
    )
    sent = dict(headers or {})
    if status == 401:
        sent["WWW-Authenticate"] = 'Bearer realm="moeplan"'
    if status == 503:
        sent["Retry-After"] = str(RETRY_AFTER_S)
    return JSONResponse(problem.model_dump(), status_code=status, headers=sent, media_type=MEDIA_TYPE)


def add_problem_answers(app: FastAPI) -> None:
    """Let every error of a route become a problem."""

    @app.exception_handler(CodedError)
    async def coded(request: Request, error: CodedError) -> JSONResponse:
        status = status_of(error)
        if status >= 500:
            log.warning("request failed", code=error.code, detail=error.detail, status=status)
        title = (type(error).__doc__ or "").strip().splitlines()[0]
        return problem_response(
            request, status=status, code=error.code, detail=error.detail, title=title, remedies=error.remedies
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        title = (ours.BadRequest.__doc__ or "").strip()
        return problem_response(request, status=422, code="BAD_REQUEST", detail=_sentence(error), title=title)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        code = CODES.get(error.status_code, re.sub(r"\W+", "_", HTTPStatus(error.status_code).phrase).upper())
        return problem_response(
            request, status=error.status_code, code=code, detail=f"{str(error.detail).rstrip('.')}.",
            headers=error.headers,
        )  # fmt: skip

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> JSONResponse:
        full = disk_full(error)  # say the folder for temporary files, which the framework writes uploads to
        return await broke(request, error) if full is None else await coded(request, full)

    @app.exception_handler(Exception)
    async def broke(request: Request, error: Exception) -> JSONResponse:
        log.exception("request broke", path=request.url.path)
        detail = "moeplan failed at this request; its log says how."
        return problem_response(request, status=500, code="INTERNAL_ERROR", detail=detail)


def _sentence(error: RequestValidationError) -> str:
    """Say where the request is wrong; what was sent is not repeated, since it may be a secret."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "the body is not JSON."
    where, *path = [str(part) for part in first["loc"]] or ["request"]
    place = f"{where} {'.'.join(path)}" if path else where
    message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    more = len(error.errors()) - 1
    others = f" ({more} more {'is' if more == 1 else 'are'} wrong)" if more else ""
    return f"{place}: {message[:1].lower()}{message[1:]}{others}."
