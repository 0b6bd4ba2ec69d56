"""Jobs: where what they are for is shown, and how they went on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.states import JobKind
from api.store.models import Job

PLACES = {JobKind.IMPORT: "traces", JobKind.CAPTURE: "traces", JobKind.PLAN: "plans", JobKind.ROLLOUT: "rollouts"}


def subject_address(job: Job) -> str | None:
    """Return the page of the recording, plan or rollout that a job is for; None for a kind that has no page."""
    place = PLACES.get(job.kind)
    return None if place is None else f"/{place}/{job.subject_id}"


def progress_points(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return when a job was how far, for its curve."""
    return [{"at": each["at"].isoformat(), "progress": each["progress"]} for each in events if "progress" in each]
