"""HTTP to one moeplan service: bounded, tried again where that is safe, and with its token out of every text."""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import httpx

from api.client.problems import error_of
from api.errors import BadSetting, ServiceAnswerInvalid, ServiceUnreachable
from placement.notice import Notice
from profiler.files import atomic_output
from profiler.http_server import is_loopback

ATTEMPTS = 4
FIRST_PAUSE_S = 0.5
TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 256 * 2**20
"""Of answers that are held in memory; recordings are streamed to a file."""

PIECE_BYTES = 2**20
PER_PAGE = 200

Query = Mapping[str, str | int | None]


@dataclass(frozen=True)
class Reply:
    """An answer that is no problem: its JSON (None without a body) and what its headers say."""

    json: Any
    location: str
    etag: str


@dataclass(frozen=True)
class Upload:
    """Files to send as a form, by the names they get there, and the form's other fields."""

    files: Sequence[tuple[str, Path]]
    fields: Mapping[str, str]


class ServiceConnection:
    """One service and the token for it. Usable as a context manager; no text contains the token.

    Parameters
    ----------
    url : str
        ``http://host:port`` or ``https://...``, with the path of a proxy where it has one.
    token : str or None
        A key of the service.

    Raises
    ------
    BadSetting
        The URL or the token is unusable; the message does not repeat the token.

    Notes
    -----
    Every method raises :class:`ServiceUnreachable`, :class:`ServiceAnswerInvalid`, and the errors that the service
    answers with. Redirects are not followed and proxies of the environment are not used: the token goes to the service
    that was named and nowhere else.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = _checked_url(url)
        self._has_token = token is not None
        self._client = httpx.Client(
            base_url=self.url,
            trust_env=False,
            verify=ssl.create_default_context() if self.url.startswith("https") else False,
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            headers={"accept-encoding": "identity", **_authorization(token)},
        )

    def __repr__(self) -> str:
        return f"ServiceConnection({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is dangerous about this connection."""
        parsed = httpx.URL(self.url)
        if not self._has_token or parsed.scheme == "https" or is_loopback(parsed.host):
            return ()
        return (Notice("TOKEN_IN_CLEAR", f"the token goes to {parsed.host} over plain HTTP; whoever listens has it."),)

    def get(self, path: str, query: Query | None = None) -> Any:
        """Return the JSON of an answer."""
        return self._reply("GET", path, query=query).json

    def read(self, path: str, query: Query | None = None) -> bytes:
        """Return an answer as it is."""
        return self._tried("GET", path, query=query, again=True).content

    def pages(self, path: str, query: Query | None = None, *, most: int) -> list[dict[str, Any]]:
        """Return up to ``most`` rows of a list, newest first."""
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(rows) < most:
            page = self.get(path, {**(query or {}), "limit": min(PER_PAGE, most - len(rows)), "cursor": cursor})
            rows += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return rows

    def post(self, path: str, body: object = None, *, once: str | None = None) -> Reply:
        """Ask for a change.

        Parameters
        ----------
        once
            ``Idempotency-Key``: the request may be sent again when its answer is lost, and is done once.
        """
        return self._reply("POST", path, body=body, headers={} if once is None else {"Idempotency-Key": once})

    def patch(self, path: str, body: object, *, etag: str) -> Reply:
        """Change what is still as it was read."""
        return self._reply("PATCH", path, body=body, headers={"If-Match": etag})

    def delete(self, path: str, body: object = None) -> None:
        """Remove something."""
        self._reply("DELETE", path, body=body)

    def reply(self, path: str) -> Reply:
        """As :meth:`get`, with the headers."""
        return self._reply("GET", path)

    def upload(self, path: str, form: Upload, *, once: str) -> Reply:
        """Send files, streamed; sent again from their beginning when the connection breaks."""
        return self._reply("POST", path, form=form, headers={"Idempotency-Key": once})

    def download(self, path: str, out: Path) -> None:
        """Write an answer of any size to a file, whole or not at all."""
        with atomic_output(out) as temporary, self._streamed(path) as response, temporary.open("wb") as file:
            for piece in response.iter_bytes(PIECE_BYTES):
                file.write(piece)

    @contextmanager
    def lines(self, path: str, *, headers: Mapping[str, str], silence_s: float) -> Iterator[Iterator[str]]:
        """Give the lines of an answer as they come; a line at least every ``silence_s`` seconds."""
        with self._streamed(path, headers=headers, timeout_s=silence_s) as response:
            yield response.iter_lines()

    @contextmanager
    def _streamed(
        self, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> Iterator[httpx.Response]:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            with self._client.stream("GET", path, headers=dict(headers or {}), timeout=timeout) as response:
                if response.status_code >= 300:
                    response.read()
                    raise self._problem(response)
                yield response
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _reply(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **sent: Any) -> Reply:
        again = method == "GET" or "Idempotency-Key" in (headers or {})
        response = self._tried(method, path, headers=headers, again=again, **sent)
        try:
            body = json.loads(response.content) if response.content else None
        except (ValueError, RecursionError):
            raise ServiceAnswerInvalid(f"{self.url} answers, but not in JSON: it is no moeplan service.") from None
        return Reply(body, response.headers.get("location", ""), response.headers.get("etag", ""))

    def _tried(self, method: str, path: str, *, again: bool, **sent: Any) -> httpx.Response:
        """Send a request, again after growing pauses with jitter where nothing is done twice by that."""
        for attempt in range(1, ATTEMPTS if again else 1):
            try:
                response = self._sent(method, path, **sent)
            except ServiceUnreachable:
                response = None
            if response is not None and response.status_code != 503:
                return self._good(response)
            time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        return self._good(self._sent(method, path, **sent))

    def _sent(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        form: Upload | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with ExitStack() as opened:
            files: list[tuple[str, tuple[str, BinaryIO]]] | None = None
            if form is not None:
                files = [("files", (name, opened.enter_context(file.open("rb")))) for name, file in form.files]
            request = self._client.build_request(
                method, path, params=given, json=body, files=files, data=None if form is None else dict(form.fields),
                headers=dict(headers or {}),
            )  # fmt: skip
            try:
                response = self._client.send(request, stream=True)
                try:
                    self._read_bounded(response)
                finally:
                    response.close()
            except httpx.HTTPError as error:
                raise self._unreachable(error) from None
        return response

    def _read_bounded(self, response: httpx.Response) -> None:
        stated = response.headers.get("content-length", "0")
        if not stated.isdigit() or int(stated) > MAX_ANSWER_BYTES:
            raise ServiceAnswerInvalid(f"{self.url} answers with more than {MAX_ANSWER_BYTES} bytes.")
        response.read()

    def _good(self, response: httpx.Response) -> httpx.Response:
        if response.status_code >= 300:
            raise self._problem(response)
        return response

    def _problem(self, response: httpx.Response) -> Exception:
        kind = response.headers.get("content-type", "").partition(";")[0]
        try:
            problem = json.loads(response.content)
        except (ValueError, RecursionError):
            problem = None
        if kind != "application/problem+json" or not isinstance(problem, dict):
            if response.status_code in (502, 503, 504):  # a proxy whose service is away
                return ServiceUnreachable(f"the service behind {self.url} does not answer.")
            return ServiceAnswerInvalid(
                f"{self.url} answers with status {response.status_code} and no problem of moeplan's; is this a moeplan "
                "service, and is its path right?"
            )
        return error_of(problem)

    def _unreachable(self, error: httpx.HTTPError) -> ServiceUnreachable:
        said = str(error) or type(error).__name__
        return ServiceUnreachable(f"the service at {self.url} does not answer: {said[:200].rstrip('.')}.")


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BadSetting("the token is not printable text without spaces.")
    return {"authorization": f"Bearer {token}"}


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
        named = bool(parsed.host and parsed.host.encode("idna"))
    except (httpx.InvalidURL, ValueError, TypeError):
        raise BadSetting("the service's URL cannot be read; an example is http://127.0.0.1:8430.") from None
    if parsed.userinfo:
        raise BadSetting("the service's URL holds a user name or password; give a token apart from it.")
    if parsed.scheme not in ("http", "https") or not named or parsed.query or parsed.fragment:
        found = "" if {"@", "?", "#"} & set(url) else f" {url!r}"
        raise BadSetting(f"the service's URL{found} must be like http://127.0.0.1:8430, with nothing behind the path.")
    return str(parsed).rstrip("/")
