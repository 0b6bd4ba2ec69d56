"""Scheduler side: orders arrive at every rank at the same point between two batches and are carried out alike.

The carrier is SGLang's ``DumperControlReqInput``: the one control message with a free JSON body, broadcast to all
ranks by ``Scheduler.recv_requests``. Ranks agree over the CPU group before anything is changed, and rank 0 sends
what all of them answered. With DP attention the leader of every data-parallel rank must answer; the others'
answers are empty.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from profiler.engine.json_fields import ContractViolation, Fields
from profiler.plugin.abilities import check_push, rank_abilities
from profiler.plugin.apply import PlacementApplier
from profiler.plugin.balancer import balancer_of
from profiler.plugin.orders import PREFIX, OrderRefused, RankAnswer, first_refusal
from profiler.plugin.placement_state import rank_checksums, rank_placement
from profiler.plugin.rank_demand import RankDemand
from profiler.plugin.rank_view import RankView, location_metadata, view_rank
from profiler.plugin.versions import EngineVersion, installed_engine

logger = logging.getLogger(__name__)


class Rank:
    """The scheduler of this process, as an order sees it."""

    def __init__(self, scheduler: Any) -> None:
        self._group = scheduler.tp_cpu_group
        self.server_args = scheduler.server_args
        self.model_runner = scheduler.tp_worker.model_runner
        self.view: RankView = view_rank(scheduler.server_args)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank, on every rank."""
        import torch.distributed as dist

        values: list[Any] = [None] * dist.get_world_size(group=self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values

    def agree(self, check: Callable[[], Any]) -> Any:
        """Run a check on every rank and return its value here, or refuse on every rank when one refuses.

        Raises
        ------
        OrderRefused
            With the reason of the lowest rank that refused.
        """
        value, answer = attempt(check, rank=self.view.tp_rank)
        refusal = first_refusal(self.gather(answer))
        if refusal is not None:
            raise refusal
        return value


def attempt(action: Callable[[], Any], *, rank: int) -> tuple[Any, RankAnswer]:
    """Run something and put what went wrong into words instead of an exception."""
    try:
        return action(), RankAnswer(rank=rank, result={})
    except ContractViolation as refusal:
        return None, RankAnswer(rank=rank, result={}, code=refusal.code, detail=refusal.detail)
    except Exception as error:
        logger.exception("moeplan: an order failed on rank %s", rank)
        return None, RankAnswer(rank=rank, result={}, code="ENGINE_FAILED", detail=f"{type(error).__name__}: {error}")


class RankSide:
    """Carries out orders in one scheduler process.

    Parameters
    ----------
    missing_hooks
        Returns, for parts of the contract whose hooks are not in place here, why not.
    """

    def __init__(self, missing_hooks: Callable[[], Mapping[str, str]]) -> None:
        self._missing_hooks = missing_hooks
        self._applier = PlacementApplier()
        self._weight_updates = 0
        self._boot_id = uuid.uuid4().hex
        self.demand = RankDemand(generation=lambda: self._applier.generation)
        self._orders: dict[str, Callable[[Rank, Fields], dict[str, Any]]] = {
            "health": self._health,
            "placement": self._placement,
            "checksums": self._checksums,
            "push_open": self._push_open,
            "push_chunk": self._push_chunk,
            "push_close": self._push_close,
            "demand_start": self._demand_start,
            "demand_state": lambda rank, order: self.demand.state(),
            "demand_stop": lambda rank, order: self.demand.stop(),
            "demand_rotate": lambda rank, order: self.demand.rotate(),
            "demand_fetch": self._demand_fetch,
        }

    def around_control(self, original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
        """Take orders of ours out of SGLang's control messages (hook on ``Scheduler.handle_dumper_control``)."""
        if not str(request.method).startswith(PREFIX):
            return original(scheduler, request)
        from sglang.srt.managers.io_struct import DumperControlReqOutput

        answers = self._carry_out(scheduler, str(request.method).removeprefix(PREFIX), request.body)
        return DumperControlReqOutput(success=True, response=answers)  # the scheduler sends what a handler returns

    def around_weight_update(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Count updates of the weights, failed ones too: they may have got half way."""
        self._weight_updates += 1
        return original(*args, **kwargs)

    def _carry_out(self, scheduler: Any, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        order_id = {"order_id": str(body.get("order_id", ""))}
        try:
            rank = Rank(scheduler)
        except Exception as error:  # every rank fails alike here: nothing has been gathered yet
            logger.exception("moeplan: this engine's scheduler is not as expected")
            answer = RankAnswer(rank=0, result={}, code="ENGINE_FAILED", detail=f"{type(error).__name__}: {error}")
            return [order_id | answer.to_json()]
        result, answer = attempt(lambda: self._do(rank, name, body), rank=rank.view.tp_rank)
        mine = RankAnswer(rank=answer.rank, result=result or {}, code=answer.code, detail=answer.detail)
        gathered: list[RankAnswer] = rank.gather(mine)
        if rank.view.tp_rank != 0:
            return []
        return [order_id | one.to_json() for one in gathered]

    def _do(self, rank: Rank, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if name not in self._orders:
            raise OrderRefused(f"this plugin knows no order {name!r}.", code="UNKNOWN_ORDER")
        return self._orders[name](rank, Fields(body, "order"))

    # -- orders --------------------------------------------------------------------------------------------------

    def _health(self, rank: Rank, _order: Fields) -> dict[str, Any]:
        abilities = rank_abilities(
            rank.model_runner,
            rank.server_args,
            rank.view,
            version=installed_engine(),
            missing_hooks=self._missing_hooks(),
        )
        return {
            "rank": rank.view.ep_rank,
            "ranks": rank.view.ep_size,
            "balancer": self._balancer(rank),
            "abilities": {name: {"works": a.works, "reason": a.reason} for name, a in abilities.items()},
        }

    def _balancer(self, rank: Rank) -> str:
        """Say who changes layouts by itself; SGLang does where our hook is missing."""
        found = balancer_of(rank.server_args)
        return "sglang" if found == "moeplan" and "balancer" in self._missing_hooks() else found

    def _placement(self, rank: Rank, _order: Fields) -> dict[str, Any]:
        _require_expert_location(rank)
        part = rank_placement(rank.model_runner, rank.server_args, rank.view)
        return part | {
            "generation": self._applier.generation,
            "push_in_progress": self._applier.in_progress,
            "weight_updates": self._weight_updates,
            "boot_id": self._boot_id,
        }

    def _checksums(self, rank: Rank, order: Fields) -> dict[str, Any]:
        _require_expert_location(rank)
        return {"rank": rank.view.ep_rank, "layers": rank_checksums(rank.model_runner, layers=order.integers("layers"))}

    def _push_open(self, rank: Rank, order: Fields) -> dict[str, Any]:
        version: EngineVersion = installed_engine()

        def check() -> Any:
            if "push" in self._missing_hooks():
                raise OrderRefused(self._missing_hooks()["push"], code="HOOK_MISSING")
            check_push(rank.model_runner, rank.server_args, rank.view, version)
            return self._applier.plan(
                order, model_runner=rank.model_runner, server_args=rank.server_args, view=rank.view
            )

        planned, push = rank.agree(check)
        if len(set(rank.gather(planned["previous_layout_hash"]))) != 1:
            raise OrderRefused(
                "the ranks run different layouts; restart the engine before pushing.", code="RANKS_DISAGREE"
            )
        if push.chunks and not order.flag("dry_run"):
            self._applier.open(push)
        result: dict[str, Any] = planned
        return result

    def _push_chunk(self, rank: Rank, order: Fields) -> dict[str, Any]:
        push_id, index = order.text("push_id"), order.integer("index")
        layers = rank.agree(lambda: self._applier.chunk(push_id, index))
        return self._applier.apply(layers, model_runner=rank.model_runner, server_args=rank.server_args, view=rank.view)

    def _push_close(self, _rank: Rank, order: Fields) -> dict[str, Any]:
        return self._applier.close(order.text("push_id"))

    def _demand_start(self, rank: Rank, order: Fields) -> dict[str, Any]:
        abilities = rank_abilities(
            rank.model_runner,
            rank.server_args,
            rank.view,
            version=installed_engine(),
            missing_hooks=self._missing_hooks(),
        )

        def check() -> None:
            if not abilities["demand"].works:
                raise OrderRefused(abilities["demand"].reason, code="DEMAND_UNAVAILABLE")

        rank.agree(check)
        return self.demand.start(order, model_runner=rank.model_runner, server_args=rank.server_args)

    def _demand_fetch(self, rank: Rank, order: Fields) -> dict[str, Any]:
        return self.demand.fetch(order.integer("max_windows", minimum=1), model_runner=rank.model_runner)


def _require_expert_location(rank: Rank) -> None:
    if location_metadata() is None:
        raise OrderRefused(
            f"{type(rank.model_runner.model).__name__} has no expert location in SGLang.",
            code="MODEL_WITHOUT_EXPERT_LOCATION",
        )
