"""The page as a whole: complete, self-contained, safe, readable."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from importlib.resources import files

import pytest

from api.report import render_report
from placement.dispatch import Dispatch
from placement.notice import Notice
from placement.plan import Plan
from placement.plan_header import PlanInput
from placement.problem import LocalScope, Objective
from placement.topology import Topology
from profiler.plan_file import plan_from_document
from tests.api.report.markup import Page
from tests.sample_plans import Sample, make_plan, skewed_demand, small_sample

SAMPLES = {
    "locality": small_sample(),
    "no all-to-all": replace(small_sample(), dispatch=Dispatch.EVEN, objective=Objective.BALANCE),
    "nodes and holdout": replace(
        small_sample(), topology=Topology(4, 2), local_scope=LocalScope.NODE, holdout=skewed_demand(seed=4)
    ),
    "nothing known": replace(small_sample(), model_name="", top_k=None, expert_bytes=None),
    "one GPU, one window": Sample(skewed_demand(windows=1, experts=8), Topology(1), slots_per_gpu=8),
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(small_sample())


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_of_plan_gives_a_well_formed_page(name: str) -> None:
    page = Page.parse(render_report(make_plan(SAMPLES[name])))
    assert [element.tag for element in page.elements[:2]] == ["html", "head"]
    assert [heading.text for heading in page.all("h2")] == [
        "Compared layouts",
        "Capacity",
        "Expert heat",
        "GPU load",
        "Moves",
        "Windows",
        "Use it",
        "How it was made",
        "Behind the charts",
    ]


def test_the_page_holds_what_a_ticket_needs(plan: Plan) -> None:
    html = render_report(plan)
    text = Page.parse(html).elements[0].text
    for needed in (plan.layout.hash, plan.inputs[0].sha256, "recording.npz", "nearest-dynamic", "uniform", "trivial"):
        assert needed in text
    for row in plan.baselines.values():
        assert f"{row.imbalance:.3f}" in text
    assert f"{plan.metrics.worst_window.imbalance:.3f}" in text
    assert text.count("Predicted by the dispatch model") == 2


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_loaded_and_nothing_runs(name: str) -> None:
    html = render_report(make_plan(SAMPLES[name]))
    page = Page.parse(html)
    tags = {element.tag for element in page.elements}
    assert not tags & {"script", "iframe", "object", "embed", "img", "form", "base", "a", "image", "use"}
    assert [link.attributes["href"] for link in page.all("link")] == ["data:,"]
    assert "://" not in html
    assert "@import" not in html
    assert "url(" not in html
    assert not [name for element in page.elements for name in element.attributes if name.startswith("on")]
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy.attributes["content"].startswith("default-src 'none'")


HOSTILE = "<img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}</style></title>"


def test_names_from_inputs_are_text(plan: Plan) -> None:
    windows = tuple(replace(window, name=HOSTILE) for window in plan.metrics.windows)
    hostile = replace(
        plan,
        model=replace(plan.model, name=HOSTILE),
        inputs=(PlanInput(HOSTILE, "cd" * 32),),
        metrics=replace(plan.metrics, windows=windows, worst_window=replace(plan.metrics.worst_window, name=HOSTILE)),
        baselines={HOSTILE: plan.baselines["eplb"]},
        notices=(Notice(HOSTILE, HOSTILE),),
        bound=replace(plan.bound, relaxation=dict.fromkeys(plan.bound.relaxation, HOSTILE)),
        options=replace(plan.options, window_by=HOSTILE),
        moeplan_version=HOSTILE,
    )
    html = render_report(hostile)
    page = Page.parse(html)
    assert "<img" not in html
    assert "onerror" not in {name for element in page.elements for name in element.attributes}
    assert page.all("title")[0].text.count(HOSTILE) == 1
    assert len(page.all("style")) == 1
    assert page.elements[0].text.count(HOSTILE) >= 10


def test_the_same_plan_gives_the_same_page(plan: Plan) -> None:
    assert render_report(plan) == render_report(make_plan(small_sample()))
    assert render_report(plan) == render_report(replace(plan, solve_seconds=99.0))


def test_a_plan_read_back_gives_the_same_page(plan: Plan) -> None:
    assert render_report(plan_from_document(plan.to_dict(), name="plan")) == render_report(plan)


def test_warnings_come_before_the_charts(plan: Plan) -> None:
    html = render_report(replace(plan, notices=(Notice("PARTIAL_RECORDING", "2 of 4 ranks are missing."),)))
    assert html.index("PARTIAL_RECORDING") < html.index("Compared layouts")
    assert "2 of 4 ranks are missing." in html


def test_charts_speak_and_have_their_numbers_in_tables(plan: Plan) -> None:
    page = Page.parse(render_report(plan))
    drawings = page.all("svg")
    spoken = [svg.attributes["aria-label"] for svg in drawings if svg.attributes.get("role") == "img"]
    assert len(spoken) == 6
    assert all(len(label) > 40 for label in spoken)
    assert all(svg.attributes.get("aria-hidden") == "true" for svg in drawings if "role" not in svg.attributes)
    assert len(page.all("caption")) == len(page.all("table"))
    layer_table = next(table for table in page.all("details") if table.text.strip().startswith("Every layer"))
    assert all(f"{tokens:,}" in layer_table.text for tokens in plan.heat_LE.sum(axis=1)[1:])


@pytest.mark.parametrize(
    ("layers", "experts", "gpus", "slots", "most"), [(61, 256, 32, 9, 400_000), (94, 384, 64, 8, 900_000)]
)
def test_large_models_stay_small_pages(layers: int, experts: int, gpus: int, slots: int, most: int) -> None:
    demand = skewed_demand(layers=layers, experts=experts, windows=1)
    html = render_report(make_plan(Sample(demand, Topology(gpus, 4), slots_per_gpu=slots)))
    assert len(html.encode()) < most
    Page.parse(html)


# Colours, read from the style sheet


def _palettes() -> dict[str, dict[str, str]]:
    css = files("api.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    light, dark, paper = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for name, block in {"light": light, "dark": dark, "print": paper}.items()
    }


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", ["light", "dark", "print"])
def test_text_is_readable_on_its_ground(palette: str) -> None:
    colours = _palettes()[palette]
    for text, ground in itertools.product(("ink", "soft", "ours", "target"), ("paper", "shade")):
        assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in ("before", "ours", "target", "bound"):
        assert _contrast(colours[mark], colours["shade"]) >= 1.9, mark


@pytest.mark.parametrize("palette", ["light", "dark", "print"])
def test_hotter_is_further_from_the_paper(palette: str) -> None:
    """A scale whose lightness runs one way can be read without telling colours apart."""
    colours = _palettes()[palette]
    heat = [_luminance(colours[f"heat-{step}"]) for step in range(9)]
    assert heat == sorted(heat, reverse=palette != "dark")
    assert all(_contrast(colours[f"heat-{a}"], colours[f"heat-{a + 1}"]) > 1.15 for a in range(8))


@pytest.mark.parametrize("palette", ["light", "dark", "print"])
def test_load_grows_away_from_even_on_both_sides(palette: str) -> None:
    colours = _palettes()[palette]
    for side in (range(4, 9), range(4, -1, -1)):
        shades = [_luminance(colours[f"load-{step}"]) for step in side]
        assert shades == sorted(shades, reverse=palette != "dark")


def test_every_step_has_its_colour_rule() -> None:
    css = files("api.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    for scale, step in itertools.product(("heat", "load"), range(9)):
        assert f"svg .{scale}-{step} {{ stroke: var(--{scale}-{step}); }}" in css
        assert f"li.{scale}-{step} {{ background: var(--{scale}-{step}); }}" in css
