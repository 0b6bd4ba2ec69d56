"""The application: routes, errors, limits, in one place."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry

from api.http.engine_calls import EngineCalls
from api.http.metrics import HttpMetrics
from api.http.middleware import LimitedBodies, RequestIds, SizeLimits
from api.http.problems import Problem, add_problem_answers, documented
from api.http.routes import decisions, engines, frames, health, jobs, keys, plans, rollouts, schedules, traces
from api.http.state_metrics import StateCollector
from api.pages.app import add_pages
from api.service.context import Service
from api.service.frames import FramesCache
from api.service.heat import HeatCache

FORM_OVERHEAD_BYTES = 2**20
"""Of a multipart form, beside its files."""

DESCRIPTION = """
Plans where the experts of Mixture-of-Experts models live when SGLang serves them with expert parallelism, and brings
plans into running engines.

Long work answers 202 with the job in `Location`; follow it at `/v1/jobs/{id}` or as events. Errors are RFC 9457
problems with the codes of the command line. Lists have pages: pass `next_cursor` on as `cursor`.
"""


def create_app(service: Service) -> FastAPI:
    """Build the application that serves one service."""
    return bound(routed(), service)


def routed() -> FastAPI:
    """Build an application with all routes and pages, which serves nothing yet."""
    app = FastAPI(title="moeplan", version=version("moeplan"), description=DESCRIPTION, redoc_url=None, docs_url=None)
    v1 = APIRouter(prefix="/v1", responses=documented(400, 401, 403, 413, 422, 503))
    for module in (engines, traces, frames, plans, rollouts, schedules, decisions, jobs, keys):
        v1.include_router(module.router)
    v1.include_router(frames.sizes_router)
    app.include_router(v1)
    app.include_router(health.router)
    add_pages(app)
    add_problem_answers(app)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def bound(app: FastAPI, service: Service) -> FastAPI:
    """Let an application of :func:`routed` serve one service, within its limits."""
    registry = CollectorRegistry()
    registry.register(StateCollector(service))
    app.state.service, app.state.registry = service, registry
    app.state.heat, app.state.frames, app.state.engine_calls = HeatCache(), FramesCache(), EngineCalls()
    settings = service.settings
    limits = SizeLimits(
        body_bytes=settings.max_body_bytes,
        upload_bytes=settings.max_upload_bytes + FORM_OVERHEAD_BYTES,
        is_upload=lambda method, path: method == "POST" and path == "/v1/traces",
    )
    app.add_middleware(LimitedBodies, limits=limits)
    app.add_middleware(RequestIds, metrics=HttpMetrics(registry))  # added last, so it is around everything
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description; problems are one schema, in the media type of RFC 9457."""
    if app.openapi_schema is None:
        description = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = description["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        app.openapi_schema = description
    return app.openapi_schema
