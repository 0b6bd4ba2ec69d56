"""The replay engine's HTTP routes: SGLang's own, those of moeplan's plugin, and two of the replay's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from profiler.engine.contract import Refusal
from profiler.engine.contract_demand import DEFAULT_FETCH_WINDOWS, MAX_RING_WINDOWS, DemandOptions
from profiler.engine.contract_push import PushRequest
from profiler.engine.json_body import read_json
from profiler.engine.json_fields import ContractViolation, Fields, shown
from profiler.replay.auth import KeyRefused, admin_level, normal_level
from profiler.replay.loop import EngineStopped, StepLoop
from profiler.replay.options import ReplayOptions
from profiler.replay.pushing import AnswerLost, carry_out
from profiler.replay.requests import GenerateRequest

MAX_STEPS_PER_CALL = 100_000

CONFLICT_CODES = ("LAYOUT_HASH_MISMATCH", "PUSH_IN_PROGRESS", "RECORDING_IN_PROGRESS")


async def json_body(request: Request) -> Any:
    """Read a JSON body, as the plugin does."""
    return await read_json(request.stream())


JsonBody = Annotated[Any, Depends(json_body)]


def create_app(loop: StepLoop, options: ReplayOptions) -> FastAPI:
    """Build the application that serves one replay engine."""
    app = FastAPI(title="moeplan replay engine", docs_url=None, redoc_url=None, openapi_url=None)
    reading = APIRouter(dependencies=[Depends(normal_level(api_key=options.api_key))])
    admin = APIRouter(dependencies=[Depends(admin_level(api_key=options.api_key, admin_key=options.admin_key))])
    _add_engine_routes(app, reading, loop)
    _add_request_routes(reading, loop, options)
    _add_recorder_routes(admin, loop, options)
    _add_placement_routes(admin, loop)
    _add_demand_routes(admin, loop)
    _add_replay_routes(admin, loop)
    app.include_router(reading)
    app.include_router(admin)
    _add_error_answers(app)
    if options.faults.latency_s:
        _add_latency(app, options.faults.latency_s)
    return app


def _add_engine_routes(app: FastAPI, reading: APIRouter, loop: StepLoop) -> None:
    @app.get("/health")
    def health() -> Response:
        return Response(status_code=200 if loop.alive else 503)

    @reading.get("/server_info")
    @reading.get("/get_server_info")
    def server_info() -> dict[str, object]:
        return loop.call(lambda engine: engine.server_info())


def _add_request_routes(reading: APIRouter, loop: StepLoop, options: ReplayOptions) -> None:
    @reading.post("/generate")
    async def generate(body: JsonBody) -> dict[str, Any]:
        return await loop.generate(GenerateRequest.from_json(body, gpus=options.gpus))


def _add_recorder_routes(admin: APIRouter, loop: StepLoop, options: ReplayOptions) -> None:
    def recorder_there() -> None:
        if not options.recorder:
            raise _RecorderOff

    there = [Depends(recorder_there)]

    @admin.api_route("/start_expert_distribution_record", methods=["GET", "POST"], dependencies=there)
    def start_record() -> Response:
        loop.call(lambda engine: engine.recorder.start())
        return PlainTextResponse("Start recording the expert distribution.\n")

    @admin.api_route("/stop_expert_distribution_record", methods=["GET", "POST"], dependencies=there)
    def stop_record() -> Response:
        loop.call(lambda engine: engine.recorder.stop())
        return PlainTextResponse("Stop recording the expert distribution.\n")

    @admin.api_route("/dump_expert_distribution_record", methods=["GET", "POST"], dependencies=there)
    def dump_record() -> Response:
        # Late: torch takes seconds to import, and only dumps need it.
        from profiler.writers.sglang_dump import stat_file_name, write_stat

        counts = loop.call(lambda engine: engine.dump_record())
        folder = options.dump_folder()
        folder.mkdir(parents=True, exist_ok=True)
        write_stat(folder / stat_file_name(time.time()), counts)
        return PlainTextResponse("Dump expert distribution record.\n")


def _add_placement_routes(admin: APIRouter, loop: StepLoop) -> None:
    @admin.get("/moeplan/health")
    def plugin_health() -> dict[str, Any]:
        return loop.call(lambda engine: engine.health()).to_json()

    @admin.get("/moeplan/placement")
    def placement(checksums: Literal["0", "1"] = "0") -> dict[str, Any]:
        return loop.call(lambda engine: engine.asked_placement(checksums=checksums == "1")).to_json()

    @admin.put("/moeplan/placement")
    def push(body: JsonBody) -> Response:
        try:
            answer = carry_out(loop, PushRequest.from_json(body))
        except AnswerLost:
            return _HalfAnAnswer()
        return JSONResponse(answer.to_json(), status_code=500 if answer.status == "partial" else 200)


def _add_demand_routes(admin: APIRouter, loop: StepLoop) -> None:
    @admin.post("/moeplan/demand/start")
    def start_demand(body: JsonBody) -> dict[str, Any]:
        options = DemandOptions.from_json(body)
        return loop.call(lambda engine: engine.start_demand(options)).to_json()

    @admin.post("/moeplan/demand/stop")
    def stop_demand() -> dict[str, Any]:
        return loop.call(lambda engine: engine.stop_demand()).to_json()

    @admin.get("/moeplan/demand")
    def demand(
        max_windows: Annotated[int, Query(ge=1, le=MAX_RING_WINDOWS)] = DEFAULT_FETCH_WINDOWS,
    ) -> dict[str, Any]:
        return loop.call(lambda engine: engine.fetch_demand(max_windows)).to_json()


def _add_replay_routes(admin: APIRouter, loop: StepLoop) -> None:
    @admin.get("/moeplan/measured")
    def measured() -> dict[str, Any]:
        return loop.call(lambda engine: engine.measured()).to_json()

    @admin.get("/moeplan/replay/pushes")
    def pushes() -> dict[str, Any]:
        return {"pushes": loop.call(lambda engine: engine.push_log.to_json())}

    @admin.post("/moeplan/replay/steps")
    def run_steps(body: JsonBody) -> dict[str, Any]:
        steps = Fields(body, "steps").integer("steps", minimum=1)
        if steps > MAX_STEPS_PER_CALL:
            raise ContractViolation(f"steps.steps is {steps}; at most {MAX_STEPS_PER_CALL} are run at once.")
        served, at_end = loop.run_steps(steps)
        return {"steps_served": served, "at_end": at_end}


class _HalfAnAnswer(Response):
    """Promises a body that never comes, as a connection that breaks."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"1000000"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


class _RecorderOff(Exception):
    """SGLang was started without ``--expert-distribution-recorder-mode``."""


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(ContractViolation)
    async def violation(request: Request, error: ContractViolation) -> Response:
        status = 409 if error.code in CONFLICT_CODES else 400
        return JSONResponse(Refusal(error.code, error.detail).to_json(), status_code=status)

    @app.exception_handler(RequestValidationError)
    async def bad_query(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        detail = f"{first['loc'][-1]}={shown(first['input'])}: {first['msg']}."
        return JSONResponse(Refusal("BAD_MESSAGE", detail).to_json(), status_code=400)

    @app.exception_handler(KeyRefused)
    async def key_refused(request: Request, error: KeyRefused) -> Response:
        return JSONResponse({"error": "Unauthorized"}, status_code=401)

    @app.exception_handler(EngineStopped)
    async def stopped(request: Request, error: EngineStopped) -> Response:
        return JSONResponse(Refusal("ENGINE_STOPPED", str(error)).to_json(), status_code=503)

    @app.exception_handler(_RecorderOff)
    async def recorder_off(request: Request, error: _RecorderOff) -> Response:
        text = "The recorder is off; start the engine with --expert-distribution-recorder-mode stat.\n"
        return PlainTextResponse(text, status_code=400)


def _add_latency(app: FastAPI, latency_s: float) -> None:
    @app.middleware("http")
    async def late(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        await asyncio.sleep(latency_s)
        return await answer(request)
