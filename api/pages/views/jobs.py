"""Jobs: where what they are for is shown, how they went on, and how the search of a plan went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.report.numbers import ABSENT, percent, ratio
from api.service.search_course import SEARCH, SearchCourse
from api.states import JobKind
from api.store.models import Job
from placement.solver.course import Figure, Stage

PLACES = {
    JobKind.IMPORT: "traces",
    JobKind.CAPTURE: "traces",
    JobKind.PLAN: "plans",
    JobKind.SIZE: "plans",
    JobKind.ROLLOUT: "rollouts",
}

PLANS = (JobKind.PLAN, JobKind.REBALANCE)
"""Jobs that search a plan."""


@dataclass(frozen=True)
class Axis:
    """How the values of a figure are shown: the unit on the axis, and values in it as a multiple of what is kept."""

    unit: str
    factor: float
    shown: Callable[[float | None], str]


def microseconds(seconds: float | None) -> str:
    return ABSENT if seconds is None else f"{1e6 * seconds:.1f} \N{MICRO SIGN}s"


AXES: Mapping[Figure, Axis] = {
    Figure.LOCAL_GPU: Axis("%", 100.0, lambda value: percent(value, digits=2)),
    Figure.LOCAL_NODE: Axis("%", 100.0, lambda value: percent(value, digits=2)),
    Figure.IMBALANCE: Axis("max / mean", 1.0, lambda value: ratio(value, digits=4)),
    Figure.GPUS_PER_TOKEN: Axis("GPUs", 1.0, lambda value: ratio(value, digits=4)),
    Figure.MOE_LAYER_S: Axis("\N{MICRO SIGN}s", 1e6, microseconds),
}

MEANING: Mapping[Figure, str] = {
    Figure.LOCAL_GPU: "the share of demand that stays on the token's home GPU",
    Figure.LOCAL_NODE: "the share of demand that stays on the token's home node",
    Figure.IMBALANCE: "the worst window's imbalance, a sum over layers",
    Figure.GPUS_PER_TOKEN: "the other GPUs that a token is sent to, per layer",
    Figure.MOE_LAYER_S: "the predicted time of a MoE layer, the mean over layers",
}


@dataclass(frozen=True)
class CoursePoint:
    """One row of the course's table."""

    at: str
    best: str
    bound: str
    imbalance: str
    slots_per_gpu: int
    stage: str


@dataclass(frozen=True)
class CourseView:
    """The course of a search as its page shows it.

    Attributes
    ----------
    figure, meaning, unit
        What is planned for.
    factor : float
        From values to what the axis shows.
    sentence : str
        Where the search stands.
    rows : tuple of CoursePoint
    points : list of dict
        For the curve.
    tries_slots : bool
        Whether several numbers of slots were tried.
    limit : str
        What a bound is: "at most" or "at least".
    stages : dict
        Sentences of what the search does, by its name.
    """

    figure: Figure
    meaning: str
    unit: str
    factor: float
    sentence: str
    rows: tuple[CoursePoint, ...]
    points: list[dict[str, Any]]
    tries_slots: bool
    limit: str
    stages: dict[str, str]


def subject_address(job: Job) -> str | None:
    """Return the page of the recording, plan or rollout that a job is for; None for a kind that has no page."""
    place = PLACES.get(job.kind)
    return None if place is None else f"/{place}/{job.subject_id}"


def progress_points(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return when a job was how far, for its curve."""
    return [{"at": each["at"].isoformat(), "progress": each["progress"]} for each in events if "progress" in each]


def told_events(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what happened to a job; the points of a search have a table of their own."""
    return [each for each in events if each["kind"] != SEARCH]


def course_view(course: SearchCourse) -> CourseView | None:
    """Return the course of a search as it is shown; None where there is none."""
    if course.figure is None:
        return None
    axis, last = AXES[course.figure], course.points[-1]
    rows = tuple(
        CoursePoint(
            at=f"{point['elapsed_s']:.2f}",
            best=axis.shown(point["best"]),
            bound=axis.shown(point["bound"]),
            imbalance=ratio(point["imbalance"], digits=4),
            slots_per_gpu=point["slots_per_gpu"],
            stage=Stage(point["stage"]).sentence,
        )
        for point in course.points
    )
    return CourseView(
        figure=course.figure,
        meaning=MEANING[course.figure],
        unit=axis.unit,
        factor=axis.factor,
        sentence=_sentence(course.figure, axis, last),
        rows=rows,
        points=course.points,
        tries_slots=len({point["slots_per_gpu"] for point in course.points}) > 1,
        limit=_limit(course.figure),
        stages={str(stage): stage.sentence for stage in Stage},
    )


def _sentence(figure: Figure, axis: Axis, last: Mapping[str, Any]) -> str:
    proven = "nothing is proven" if last["bound"] is None else f"proven: {_limit(figure)} {axis.shown(last['bound'])}"
    if last["best"] is None:
        return f"No plan keeps the cap on imbalance of {ratio(last['cap'], digits=4)} yet; {proven}."
    return f"{figure} {axis.shown(last['best'])}; {proven}."


def _limit(figure: Figure) -> str:
    return "at most" if figure.higher_is_better else "at least"
