"""The states that things of the service go through, each with the sentence that users see.

::

    trace     waiting --> importing --> ready --> expired
              waiting, importing --> failed

    plan      waiting --> solving --> proposed --> approved <--> rejected
              proposed --> rejected
              waiting, solving --> failed, cancelled

    rollout   waiting --> checking --> pushing --> verifying --> measuring --> applied --> rolled_back
              verifying --> applied                                   (nothing is to be measured)
              pushing, verifying, measuring --> taking_back --> rolled_back
              waiting, checking, pushing --> refused                  (nothing has moved)
              waiting, checking --> cancelled
              pushing, verifying, measuring, taking_back --> failed, superseded, unconfirmed
              failed, unconfirmed --> rolled_back                     (by a later rollout)

    job       queued --> running --> succeeded, failed, cancelled
              queued --> failed, cancelled

Every step is written down in the audit log with who and why (:func:`api.store.audit.change_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self


class State(StrEnum):
    """A state and its sentence."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Self:
        state = str.__new__(cls, value)
        state._value_ = value
        state.sentence = sentence
        return state


class TraceState(State):
    """Of a recording."""

    WAITING = "waiting", "Its files are here, or its recording was asked for; the job has not begun."
    IMPORTING = "importing", "It is being recorded or read."
    READY = "ready", "It can be planned from."
    FAILED = "failed", "It could not be recorded or read; the error says why."
    EXPIRED = "expired", "Its time of retention is over and its data is removed."


class PlanState(State):
    """Of a plan."""

    WAITING = "waiting", "The job has not begun."
    SOLVING = "solving", "It is being worked out."
    PROPOSED = "proposed", "It waits for approval."
    APPROVED = "approved", "It may be pushed."
    REJECTED = "rejected", "Somebody decided against it."
    FAILED = "failed", "It could not be made; the error says why."
    CANCELLED = "cancelled", "It was stopped before it was done."


class RolloutState(State):
    """Of a layout on its way into an engine."""

    WAITING = "waiting", "The job has not begun; nothing has moved."
    CHECKING = "checking", "The engine is read; nothing has moved."
    PUSHING = "pushing", "Layers are being changed."
    VERIFYING = "verifying", "Every rank's map and every slot's weights are read back."
    MEASURING = "measuring", "What the layout is worth is measured on the engine's own traffic."
    TAKING_BACK = "taking_back", "The layout before is being put back; the error or the verdict says why."
    APPLIED = "applied", "The engine runs the layout, on every rank, with the right weights."
    REFUSED = "refused", "Nothing has moved: the engine, the layout or the limits do not allow it."
    FAILED = "failed", "The engine runs some of it, or not with the right weights; the error says what it runs."
    SUPERSEDED = (
        "superseded",
        "The engine was started anew, or somebody else changed its layout: it does not run this one, and it was left "
        "alone.",
    )
    UNCONFIRMED = (
        "unconfirmed",
        "The engine stopped answering after layers may have moved: what it runs is not known until it is read again.",
    )
    ROLLED_BACK = "rolled_back", "The layout before it was put back, by itself or by a later rollout."
    CANCELLED = "cancelled", "It was stopped before anything moved."

    @property
    def ended(self) -> bool:
        """Whether its job has nothing more to do."""
        return self in (
            RolloutState.APPLIED, RolloutState.REFUSED, RolloutState.FAILED, RolloutState.SUPERSEDED,
            RolloutState.UNCONFIRMED, RolloutState.ROLLED_BACK, RolloutState.CANCELLED,
        )  # fmt: skip

    @property
    def moves_layers(self) -> bool:
        """Whether the engine may be between two layouts: such a rollout is let end, and never cut off."""
        return self in (
            RolloutState.PUSHING, RolloutState.VERIFYING, RolloutState.MEASURING, RolloutState.TAKING_BACK,
        )  # fmt: skip


class JobState(State):
    """Of a job."""

    QUEUED = "queued", "It waits for a worker, or for another job of the same engine."
    RUNNING = "running", "A worker is at it, or will take it up again where it was."
    SUCCEEDED = "succeeded", "It is done."
    FAILED = "failed", "It ended with an error."
    CANCELLED = "cancelled", "It was stopped on request."

    @property
    def ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class EngineState(State):
    """Of an engine as it was last seen."""

    UNKNOWN = "unknown", "It has not been read yet."
    READY = "ready", "It answers, and the plugin can record and push."
    LIMITED = "limited", "It answers, but not everything works; the reasons are beside it."
    UNREACHABLE = "unreachable", "It does not answer."


class JobKind(StrEnum):
    """What a job does."""

    IMPORT = "import"
    CAPTURE = "capture"
    PLAN = "plan"
    ROLLOUT = "rollout"
    REBALANCE = "rebalance"
    SIZE = "size"


class Outcome(State):
    """How a rebalancing cycle ended."""

    NOTHING = "nothing", "The layout stays: no plan is worth its moves."
    PROPOSED = "proposed", "A plan waits for approval."
    APPLIED = "applied", "A plan was pushed and kept."
    ROLLED_BACK = "rolled_back", "A plan was pushed and taken back."
    SKIPPED = (
        "skipped",
        "Nothing was decided: a cycle is still running, or the recording, the engine or the hour does not allow it.",
    )
    FAILED = "failed", "The cycle ended with an error; the engine runs what the sentence says."


class Level(StrEnum):
    """What a key may do."""

    READ = "read"
    ADMIN = "admin"


_T, _P, _R, _J = TraceState, PlanState, RolloutState, JobState
_LOST = (_R.FAILED, _R.SUPERSEDED, _R.UNCONFIRMED)

NEXT: Mapping[type[State], Mapping[State, tuple[State, ...]]] = {
    TraceState: {
        _T.WAITING: (_T.IMPORTING, _T.FAILED),
        _T.IMPORTING: (_T.READY, _T.FAILED),
        _T.READY: (_T.EXPIRED,),
    },
    PlanState: {
        _P.WAITING: (_P.SOLVING, _P.FAILED, _P.CANCELLED),
        _P.SOLVING: (_P.PROPOSED, _P.FAILED, _P.CANCELLED),
        _P.PROPOSED: (_P.APPROVED, _P.REJECTED),
        _P.APPROVED: (_P.REJECTED,),
        _P.REJECTED: (_P.APPROVED,),
    },
    RolloutState: {
        _R.WAITING: (_R.CHECKING, _R.REFUSED, _R.CANCELLED),
        _R.CHECKING: (_R.PUSHING, _R.REFUSED, _R.CANCELLED),
        _R.PUSHING: (_R.VERIFYING, _R.TAKING_BACK, _R.REFUSED, *_LOST),
        _R.VERIFYING: (_R.MEASURING, _R.APPLIED, _R.TAKING_BACK, *_LOST),
        _R.MEASURING: (_R.APPLIED, _R.TAKING_BACK, *_LOST),
        _R.TAKING_BACK: (_R.ROLLED_BACK, *_LOST),
        _R.APPLIED: (_R.ROLLED_BACK,),
        _R.FAILED: (_R.ROLLED_BACK,),
        _R.UNCONFIRMED: (_R.ROLLED_BACK,),
    },
    JobState: {
        _J.QUEUED: (_J.RUNNING, _J.CANCELLED, _J.FAILED),
        _J.RUNNING: (_J.SUCCEEDED, _J.FAILED, _J.CANCELLED),
    },
}
"""The drawn graphs as data, by kind: which states may follow. Where none may, the state is final."""


def may_follow(now: State, then: State) -> bool:
    """Whether a step is drawn in the graph."""
    return then in NEXT[type(now)].get(now, ())
