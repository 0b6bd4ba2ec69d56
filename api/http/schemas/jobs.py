"""Jobs over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, Field

from api.http.schemas.common import ErrorOut
from api.service.search_course import SearchCourse
from api.states import JobKind, JobState
from api.store.models import Job
from placement.solver.course import Figure, Stage


class JobOut(BaseModel):
    """A job and how far it is."""

    id: str = Field(examples=["job_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    kind: JobKind
    state: JobState
    sentence: str = Field(description="What the state means.")
    engine_id: str | None
    subject_id: str = Field(description="The trace, plan, rollout or cycle that it is for.")
    progress: float = Field(ge=0, le=1)
    step: str
    result: dict[str, Any] | None
    error: ErrorOut | None
    attempts: int = Field(description="Above 1: a worker died, and another went on with it.")
    created_by: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cancel_asked_at: datetime | None

    @classmethod
    def of(cls, row: Job) -> Self:
        """Show a row."""
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "sentence"}
        return cls(**fields, sentence=row.state.sentence)


class CoursePointOut(BaseModel):
    """Where a search stood: the best whole plan so far, over all layers and windows, and the bound on all plans."""

    number: int = Field(description="Of the event that told it.")
    elapsed_s: float = Field(ge=0, description="Since reading the recordings began.")
    figure: Figure
    best: float | None = Field(description="The figure of the best plan so far; null while no plan keeps the cap.")
    bound: float | None = Field(description="Proven: no plan is better. Null where nothing is proven.")
    imbalance: float | None = Field(
        description="The worst window's, of that plan; of the flattest one while no plan keeps the cap."
    )
    cap: float | None = Field(description="On that imbalance: the one asked for, or the smallest reachable one.")
    slots_per_gpu: int = Field(description="With `fit` one number is tried after the other.")
    stage: Stage


class CourseOut(BaseModel):
    """How the search of a plan goes or went."""

    job_id: str
    figure: Figure | None = Field(
        description="What is planned for. Null: nothing was searched yet, or the job's events were forgotten."
    )
    higher_is_better: bool | None
    points: list[CoursePointOut] = Field(
        description="Oldest first; the last is the plan that is handed back. A plan may give a little up at the end: "
        "for other traffic (`hedge`), for a cap on overflow, or to move less (`stay`, `moves`)."
    )

    @classmethod
    def of(cls, job_id: str, course: SearchCourse) -> Self:
        """Show a course."""
        figure = course.figure
        return cls(
            job_id=job_id,
            figure=figure,
            higher_is_better=None if figure is None else figure.higher_is_better,
            points=[CoursePointOut(**point) for point in course.points],
        )
