"""The routes, added to SGLang's own HTTP server and protected by its admin key level."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from profiler.engine.contract import Refusal
from profiler.engine.contract_demand import DEFAULT_FETCH_WINDOWS, MAX_RING_WINDOWS, DemandOptions
from profiler.engine.contract_push import PushRequest
from profiler.engine.json_body import read_json
from profiler.engine.json_fields import ContractViolation, shown
from profiler.plugin.carrier import RankCarrier
from profiler.plugin.demand_desk import DemandDesk
from profiler.plugin.orders import OrderRefused
from profiler.plugin.placement_desk import PlacementDesk
from profiler.plugin.push_desk import PushDesk

logger = logging.getLogger(__name__)

MAX_DIGITS = 20
"""Python reads no integer of thousands of digits."""

Answer = tuple[int, dict[str, Any]]
Handler = Callable[[Any], Awaitable[Answer]]


class Routes:
    """The handlers of one HTTP process; each takes a request and returns status and JSON."""

    def __init__(self, carrier: RankCarrier, *, ranks_expected: int) -> None:
        self._placements = PlacementDesk(carrier, ranks_expected=ranks_expected)
        self._pushes = PushDesk(carrier)
        self._demand = DemandDesk(carrier)

    def table(self) -> tuple[tuple[str, str, Handler], ...]:
        """Return method, path and handler of every route."""
        return (
            ("GET", "/moeplan/health", self.get_health),
            ("GET", "/moeplan/placement", self.get_placement),
            ("PUT", "/moeplan/placement", self.put_placement),
            ("POST", "/moeplan/demand/start", self.start_demand),
            ("POST", "/moeplan/demand/stop", self.stop_demand),
            ("GET", "/moeplan/demand", self.get_demand),
        )

    async def get_health(self, _request: Any) -> Answer:
        return 200, (await self._placements.health()).to_json()

    async def get_placement(self, request: Any) -> Answer:
        wanted = request.query_params.get("checksums", "0")
        if wanted not in ("0", "1"):
            raise OrderRefused(f"checksums={shown(wanted)}; it must be 0 or 1.", code="BAD_MESSAGE")
        if wanted == "1":
            return 200, (await self._placements.placement_with_checksums()).to_json()
        return 200, (await self._placements.placement()).to_json()

    async def put_placement(self, request: Any) -> Answer:
        answer = await self._pushes.push(PushRequest.from_json(await read_json(request.stream())))
        return (500 if answer.status == "partial" else 200), answer.to_json()

    async def start_demand(self, request: Any) -> Answer:
        return 200, (await self._demand.start(DemandOptions.from_json(await read_json(request.stream())))).to_json()

    async def stop_demand(self, _request: Any) -> Answer:
        return 200, (await self._demand.stop()).to_json()

    async def get_demand(self, request: Any) -> Answer:
        text = request.query_params.get("max_windows", str(DEFAULT_FETCH_WINDOWS))
        if not text.isdecimal() or len(text) > MAX_DIGITS or not 1 <= int(text) <= MAX_RING_WINDOWS:
            raise OrderRefused(f"max_windows={shown(text)}; it must be 1 to {MAX_RING_WINDOWS}.", code="BAD_MESSAGE")
        return 200, (await self._demand.fetch(int(text))).to_json()


def add_routes(app: Any, tokenizer_manager: Any) -> None:
    """Add the routes to SGLang's application, once."""
    from sglang.srt.utils.auth import AuthLevel, auth_level
    from starlette.routing import Route

    if any(str(getattr(route, "path", "")).startswith("/moeplan/") for route in app.routes):
        return
    ranks = int(getattr(tokenizer_manager.server_args, "ep_size", 1) or 1)
    routes = Routes(RankCarrier(tokenizer_manager), ranks_expected=ranks)
    for method, path, handler in routes.table():
        endpoint = auth_level(AuthLevel.ADMIN_OPTIONAL)(_endpoint(handler))
        app.router.routes.append(Route(path, endpoint, methods=[method]))
    logger.info("moeplan: routes added under /moeplan/")


def _endpoint(handler: Handler) -> Callable[[Any], Awaitable[Any]]:
    async def endpoint(request: Any) -> Any:
        from starlette.responses import JSONResponse

        try:
            status, message = await handler(request)
        except OrderRefused as refusal:
            status, message = refusal.status, Refusal(refusal.code, refusal.detail).to_json()
        except ContractViolation as violation:
            status, message = 400, Refusal(violation.code, violation.detail).to_json()
        except Exception as error:
            logger.exception("moeplan: a request failed")
            detail = f"the plugin failed: {type(error).__name__}: {error}"
            status, message = 500, Refusal("PLUGIN_FAILED", detail).to_json()
        return JSONResponse(message, status_code=status)

    return endpoint
