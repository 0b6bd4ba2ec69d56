"""Answers of an engine that are no success, as errors: the plugin's codes, SGLang's own words, or a bare status."""

from __future__ import annotations

from collections.abc import Mapping

from profiler.engine.contract import Refusal
from profiler.engine.http import Answer
from profiler.engine.json_fields import ContractViolation
from profiler.errors import (
    DispatchCombo,
    DispatchNotSet,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineRebalances,
    EngineRefused,
    EngineShapeUnsupported,
    EngineVersionUntested,
    LayoutHashMismatch,
    ModelWithoutExpertLocation,
    NotEnoughMemory,
    ScalesLeftBehind,
)

NO_REASON = "NO_REASON"
"""Code of an answer that is no success and says nothing in the contract's form."""

ERRORS_BY_CODE: Mapping[str, type[EngineError]] = {
    "LAYOUT_HASH_MISMATCH": LayoutHashMismatch,
    "PUSH_IN_PROGRESS": EngineBusy,
    "RECORDING_IN_PROGRESS": EngineBusy,
    "DISPATCH_NOT_SET": DispatchNotSet,
    "DISPATCH_COMBO": DispatchCombo,
    "MODEL_WITHOUT_EXPERT_LOCATION": ModelWithoutExpertLocation,
    "SCALES_LEFT_BEHIND": ScalesLeftBehind,
    "NOT_ENOUGH_MEMORY": NotEnoughMemory,
    "ENGINE_VERSION_UNTESTED": EngineVersionUntested,
    "ENGINE_SHAPE_UNSUPPORTED": EngineShapeUnsupported,
    "ENGINE_REBALANCES": EngineRebalances,
}
"""Codes of the plugin that have an error of their own; every other one is an :class:`EngineRefused` or
:class:`EngineFailed`."""

DISPATCH_FLAG = "--ep-dispatch-algorithm dynamic"

STILL_WORKS: Mapping[type[EngineError], tuple[str, ...]] = {
    ModelWithoutExpertLocation: ("traffic can be recorded with moeplan sample, and plans compared; none can be run",),
    DispatchNotSet: (f"start the engine with {DISPATCH_FLAG}",),
    DispatchCombo: (f"start the engine with {DISPATCH_FLAG}",),
    EngineRebalances: ("start the engine without --enable-eplb",),
}
"""What can be done where an engine refuses for good."""


def require_success(answer: Answer, *, url: str, what: str, with_key: bool) -> Answer:
    """Return an answer of status 200, or raise what another status means.

    Parameters
    ----------
    answer
    url, what
        The engine and what was asked of it, for messages.
    with_key
        Whether a key was sent.

    Raises
    ------
    EngineError
        Of :data:`ERRORS_BY_CODE`, or :class:`EngineRefused`, or from status 500 on :class:`EngineFailed`.
    """
    if answer.status == 200:
        return answer
    if answer.status in (401, 403):
        sent = "another key" if with_key else "a key"
        raise EngineRefused(
            f"{url} wants {sent} for {what}: its admin key where it has one, else its API key (status {answer.status})."
        )
    refusal = _refusal(answer)
    other = EngineFailed if answer.status >= 500 else EngineRefused
    error = ERRORS_BY_CODE.get(refusal.code, other)
    code = "" if refusal.code in (NO_REASON, error.code) else f"{refusal.code}: "
    detail = answer.without_key(f"{code}{refusal.detail}").rstrip(".")
    did = "failed at" if error is EngineFailed else "refused"
    raise error(f"{url} {did} {what} (status {answer.status}): {detail}.", remedies=STILL_WORKS.get(error, ()))


def is_refusal(answer: Answer) -> bool:
    """Whether an answer that is no success is one of the contract's refusals."""
    return _refusal(answer).code != NO_REASON


def _refusal(answer: Answer) -> Refusal:
    try:
        return Refusal.from_json(answer.json(""))
    except (ContractViolation, EngineAnswerInvalid):
        return Refusal(NO_REASON, answer.text or "no reason was given")
