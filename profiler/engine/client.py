"""The client of a live engine: SGLang with moeplan's plugin, or the replay engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from placement.notice import Notice
from profiler.engine.contract import CONTRACT_VERSION, Placement, PluginHealth
from profiler.engine.contract_demand import DEFAULT_FETCH_WINDOWS, DemandAnswer, DemandOptions, DemandState
from profiler.engine.contract_measured import Measured
from profiler.engine.contract_push import PushAnswer, PushRequest
from profiler.engine.http import Answer, EngineHttp, checked_key
from profiler.engine.json_fields import ContractViolation, Fields
from profiler.engine.refusals import is_refusal, require_success
from profiler.engine.server_facts import ServerFacts, looks_like_sglang, server_facts
from profiler.engine.time_limits import ATTEMPTS, CHECKSUMS_S, DUMP_S, HEALTH_S, HTTP_S, PUSH_TIMEOUT_S, RANKS_S
from profiler.errors import EngineAnswerInvalid, EngineUnreachable, NotAnEngine, PluginMissing, RecorderDisabled

__all__ = ["PUSH_TIMEOUT_S", "EngineClient"]

Message = TypeVar("Message")


class EngineClient:
    """Requests to one engine, answered by checked values or by one sentence.

    Usable as a context manager. Neither ``repr`` nor any message contains a key.

    Parameters
    ----------
    url : str
        ``http://host:port`` of the engine's HTTP server.
    key : str or None
        SGLang's admin key where the engine has one, else its API key, else None.
    read_key : str or None
        SGLang's API key, for engines that have both: ``/server_info`` takes no admin key. None means ``key``.
    timeout_s : float or None
        For a request, whatever it asks; pushes and dumps have limits of their own. None takes the limits of
        :mod:`profiler.engine.time_limits`, which wait longer for what an engine under load answers late.

    Raises
    ------
    BadOption
        The URL or a key is unusable.

    Notes
    -----
    All methods raise :class:`EngineUnreachable` (no answer in time), :class:`EngineRefused` (a key or request was
    refused), :class:`EngineFailed` (status 5xx) and :class:`EngineAnswerInvalid` (the answer breaks the contract).
    """

    def __init__(
        self, url: str, key: str | None = None, *, read_key: str | None = None, timeout_s: float | None = None
    ) -> None:
        self._http = EngineHttp(url, timeout_s=HTTP_S if timeout_s is None else timeout_s)
        self._timeout_s = timeout_s
        self._key = checked_key(key, "the engine's key")
        self._read_key = checked_key(read_key, "the engine's read key") or self._key

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def read_key(self) -> str | None:
        """The key of requests that only read, for clients of the same engine; keep it out of every text."""
        return self._read_key

    def __repr__(self) -> str:
        return f"EngineClient({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # ------------------------------------------------------------------ SGLang's own routes

    def require_alive(self) -> None:
        """Raise :class:`EngineUnreachable` unless the engine serves, :class:`NotAnEngine` where there is none."""
        answer = self._read("/health", HEALTH_S, key=self._key)
        if answer.status == 404:
            raise NotAnEngine(f"{self.url} answers, but has no /health: it is no SGLang.")
        if answer.status != 200:
            raise EngineUnreachable(f"{self.url} answers, but says with status {answer.status} that it does not serve.")

    def wait_alive(self, *, limit_s: float, poll_s: float = 0.2) -> None:
        """Wait until the engine serves. Raises :class:`EngineUnreachable` after ``limit_s``."""
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                return self.require_alive()
            except EngineUnreachable:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(poll_s)

    def require_answering(self) -> None:
        """Raise :class:`EngineUnreachable` unless the HTTP server answers anything at all, whatever it is."""
        self._read("/model_info", HTTP_S, key=self._read_key)

    def server_info(self) -> dict[str, Any]:
        """Return the engine's server arguments and state, unchecked beyond being an object."""
        answer = self._read("/server_info", RANKS_S, key=self._read_key)
        if answer.status == 404:  # its older name
            answer = self._read("/get_server_info", RANKS_S, key=self._read_key)
        if answer.status == 404:
            raise NotAnEngine(f"{self.url} answers, but has no /server_info: it is no SGLang.")
        info = self._success(answer, "the server's arguments").json("the server's arguments")
        if not isinstance(info, dict):
            raise EngineAnswerInvalid(f"{self.url}: the server's arguments are no JSON object.")
        return info

    def facts(self) -> ServerFacts:
        """Return the server arguments that bear on experts.

        Raises
        ------
        NotAnEngine
            What answers is no SGLang.
        """
        try:
            info = self.server_info()
        except EngineAnswerInvalid as error:
            raise NotAnEngine(f"{self.url} answers, but not as an SGLang does: {error.detail}") from None
        if not looks_like_sglang(info):
            raise NotAnEngine(f"{self.url} answers, but its /server_info has none of SGLang's arguments.")
        try:
            return server_facts(info)
        except ContractViolation as violation:
            raise EngineAnswerInvalid(f"{self.url}: {violation.detail}") from None

    def architectures(self) -> tuple[str, ...]:
        """Return the names of the model's classes, empty where the engine does not say."""
        answer = self._read("/model_info", HTTP_S, key=self._read_key)
        if answer.status != 200:
            return ()
        info = answer.json("the model's facts")
        named = info.get("architectures") if isinstance(info, dict) else None
        return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()

    def start_record(self) -> None:
        """Start SGLang's own recorder; what it held is lost.

        Raises
        ------
        RecorderDisabled
            The engine has none. Asking it anyway would end its scheduler.
        """
        if self.server_info().get("expert_distribution_recorder_mode") is None:
            raise RecorderDisabled(
                f"{self.url} was started without its recorder; start it with "
                "--expert-distribution-recorder-mode stat (or per_token)."
            )
        self._success(self._post("/start_expert_distribution_record"), "starting the recorder")

    def stop_record(self) -> None:
        """Stop SGLang's own recorder; call :meth:`start_record` first."""
        self._success(self._post("/stop_expert_distribution_record"), "stopping the recorder")

    def dump_record(self, *, timeout_s: float = DUMP_S) -> None:
        """Let the recorder write its file on the engine's host and forget what it held."""
        answer = self._http.request("POST", "/dump_expert_distribution_record", key=self._key, timeout_s=timeout_s)
        self._success(answer, "dumping the record")

    def clock_s(self) -> float | None:
        """Return the clock of the engine's host, seconds since 1970, to the second; None where it does not say."""
        # Any answer has it. Not /health: SGLang generates a token for that.
        return self._read("/model_info", HTTP_S, key=self._read_key).clock_s

    # ------------------------------------------------------------------ the plugin's routes

    def health(self) -> PluginHealth:
        """Ask whether the plugin is alive in the engine, and what it can do there.

        Raises
        ------
        PluginMissing
            The engine answers, but not at the plugin's routes.
        """
        health = self._plugin_state("/moeplan/health", PluginHealth.from_json, HEALTH_S)
        if health.contract != CONTRACT_VERSION:
            raise EngineAnswerInvalid(
                f"{self.url}: the plugin speaks version {health.contract} of the contract, this moeplan version "
                f"{CONTRACT_VERSION}; install the same moeplan on both sides."
            )
        return health

    def placement(self, *, checksums: bool = False) -> Placement:
        """Read the layout the engine runs."""
        query, limit_s = ({"checksums": 1}, CHECKSUMS_S) if checksums else ({}, RANKS_S)
        return self._plugin_state("/moeplan/placement", Placement.from_json, limit_s, query=query)

    def put_placement(self, request: PushRequest, *, timeout_s: float = PUSH_TIMEOUT_S) -> PushAnswer:
        """Push a layout; the answer may be ``partial``. For checks before and after see :mod:`profiler.engine.push`.

        Raises
        ------
        LayoutHashMismatch
            The engine runs another layout than the request expects.
        EngineBusy
            Another push is under way.
        """
        answer = self._http.request(
            "PUT", "/moeplan/placement", key=self._key, body=request.to_json(), timeout_s=timeout_s
        )
        if answer.status != 500 or is_refusal(answer):
            self._success(answer, "the push")
        return self._checked(answer, PushAnswer.from_json, "the push")

    def start_demand(self, options: DemandOptions) -> DemandState:
        """Start recording demand. Raises :class:`EngineBusy` while a recording is open."""
        return self._plugin("POST", "/moeplan/demand/start", DemandState.from_json, body=options.to_json())

    def stop_demand(self) -> DemandState:
        """Stop recording demand; finished windows can still be fetched."""
        return self._plugin("POST", "/moeplan/demand/stop", DemandState.from_json)

    def demand(self, *, max_windows: int = DEFAULT_FETCH_WINDOWS) -> DemandAnswer:
        """Take finished windows out of the engine."""
        return self._plugin("GET", "/moeplan/demand", DemandAnswer.from_json, query={"max_windows": max_windows})

    def measured(self) -> Measured:
        """Ask the replay engine what it dispatched where since the last layout change."""
        return self._plugin_state("/moeplan/measured", Measured.from_json, RANKS_S)

    def replayed_pushes(self) -> list[dict[str, Any]]:
        """Ask the replay engine for its own record of pushes (:class:`profiler.replay.push_log.LoggedPush`)."""
        return self._plugin(
            "GET", "/moeplan/replay/pushes", lambda message: Fields(message, "push log").items("pushes")
        )

    def run_steps(self, steps: int) -> bool:
        """Let a replay engine whose clock stands still serve some steps; return whether its trace is at the end."""
        return self._plugin(
            "POST",
            "/moeplan/replay/steps",
            lambda message: Fields(message, "steps").flag("at_end"),
            body={"steps": steps},
        )

    def protection_notices(self) -> tuple[Notice, ...]:
        """Return ``ENGINE_UNPROTECTED`` when the engine takes recordings and pushes from anybody."""
        answer = self._read("/moeplan/health", HEALTH_S, key=None)
        if answer.status != 200:
            return ()
        detail = f"{self.url} has no key: whoever reaches it can record and push. Start it with --admin-api-key."
        return (Notice("ENGINE_UNPROTECTED", detail),)

    # ------------------------------------------------------------------ answers

    def _limit_s(self, usual_s: float) -> float:
        return usual_s if self._timeout_s is None else self._timeout_s

    def _read(
        self, path: str, limit_s: float, *, key: str | None, query: Mapping[str, str | int] | None = None
    ) -> Answer:
        """Ask for something that asking does not change: where the connection is lost, it is asked for again."""
        limit_s = self._limit_s(limit_s)
        return self._http.request("GET", path, key=key, query=query, timeout_s=limit_s, attempts=ATTEMPTS)

    def _post(self, path: str) -> Answer:
        return self._http.request("POST", path, key=self._key, timeout_s=self._limit_s(RANKS_S))

    def _plugin_state(
        self,
        path: str,
        read: Callable[[object], Message],
        limit_s: float,
        *,
        query: Mapping[str, str | int] | None = None,
    ) -> Message:
        return self._of_plugin(self._read(path, limit_s, key=self._key, query=query), read, path)

    def _plugin(
        self,
        method: str,
        path: str,
        read: Callable[[object], Message],
        *,
        body: object = None,
        query: Mapping[str, str | int] | None = None,
    ) -> Message:
        limit_s = self._limit_s(RANKS_S)
        answer = self._http.request(method, path, key=self._key, body=body, query=query, timeout_s=limit_s)
        return self._of_plugin(answer, read, path)

    def _of_plugin(self, answer: Answer, read: Callable[[object], Message], path: str) -> Message:
        if answer.status == 404:
            raise PluginMissing(
                f"{self.url} has no route {path}: install moeplan on the engine's host "
                "(pip install --no-deps moeplan), start the engine again and look for the plugin in its log."
            )
        return self._checked(self._success(answer, path), read, path)

    def _checked(self, answer: Answer, read: Callable[[object], Message], what: str) -> Message:
        try:
            return read(answer.json(f"{self.url}: {what}"))
        except ContractViolation as violation:
            raise EngineAnswerInvalid(f"{self.url}: {what}: {answer.without_key(violation.detail)}") from None

    def _success(self, answer: Answer, what: str) -> Answer:
        return require_success(answer, url=self.url, what=what, with_key=self._key is not None)
