"""HTTP side: sends an order to every rank and collects what they answered."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from profiler.plugin.orders import PREFIX, OrderRefused, RankAnswer, first_refusal

ANSWER_TIMEOUT_S = 60.0
"""Longest wait for an order that moves nothing; a scheduler answers between two batches."""

HEALTH_TIMEOUT_S = 10.0
"""Longest wait for what the ranks say of themselves: health answers without them, too."""

MOVE_TIMEOUT_S = 600.0
"""Longest wait for one chunk of a push."""


class RankCarrier:
    """Reaches the scheduler ranks through the tokenizer manager of this HTTP process."""

    def __init__(self, tokenizer_manager: Any) -> None:
        self._tokenizer_manager = tokenizer_manager
        self._running: set[asyncio.Task[Any]] = set()

    async def order(self, name: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **body: Any) -> list[dict[str, Any]]:
        """Have every rank carry out an order; returns their results by rank.

        Raises
        ------
        OrderRefused
            The lowest rank's refusal, or ``RANKS_DO_NOT_ANSWER``.
        """
        answers = await self.answers(name, timeout_s=timeout_s, **body)
        refusal = first_refusal(answers)
        if refusal is not None:
            raise refusal
        return [answer.result for answer in answers]

    async def answers(self, name: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **body: Any) -> list[RankAnswer]:
        """Have every rank carry out an order; returns answers and refusals by rank.

        The message itself is never cancelled: a late answer would otherwise be taken for the next order's.
        """
        from sglang.srt.managers.io_struct import DumperControlReqInput

        order_id = uuid.uuid4().hex
        request = DumperControlReqInput(method=PREFIX + name, body={"order_id": order_id, **body})
        task = asyncio.ensure_future(self._tokenizer_manager.dumper_control(request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            outputs = await asyncio.wait_for(asyncio.shield(task), timeout_s)
        except TimeoutError:
            raise OrderRefused(
                f"the ranks did not answer within {timeout_s:g} s; read the placement before trying again.",
                code="RANKS_DO_NOT_ANSWER",
            ) from None
        return _answers_of(outputs, order_id)


def _answers_of(outputs: Any, order_id: str) -> list[RankAnswer]:
    failed = [output.error for output in outputs if not output.success]
    if failed:
        raise OrderRefused(
            f"the scheduler does not know moeplan's orders ({failed[0] or 'no reason given'}).", code="ENGINE_FAILED"
        )
    messages = [dict(message) for output in outputs for message in output.response]
    if not messages or any(message.pop("order_id", None) != order_id for message in messages):
        raise OrderRefused("the ranks' answer belongs to another order.", code="RANKS_DO_NOT_ANSWER")
    return [RankAnswer.from_json(message) for message in messages]
