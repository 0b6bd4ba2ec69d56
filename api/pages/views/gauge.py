"""The gauge for the target: one share from 0 to 100 %, with what runs now, the target and the proven bound as marks."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from markupsafe import Markup

from api.report.numbers import percent
from api.report.svg import drawing, element
from api.report.tables import layouts_by_name
from api.report.verdict import local_name
from placement.plan import Plan

BAR_TOP_PX, BAR_HEIGHT_PX, LINE_PX = 22, 26, 18
HEIGHT_PX = BAR_TOP_PX + BAR_HEIGHT_PX + 2 * LINE_PX + 6


def gauge_of(plan: Plan) -> Markup | None:
    """Draw a plan's own share against its target; None where no share is defined."""
    share = plan.local
    if share is None:
        return None
    target, bound, name = plan.options.local_target, plan.local_bound, local_name(plan)
    before = getattr(layouts_by_name(plan)[plan.moves.before], name)
    said = f"{name} {percent(share)}; target {percent(target, digits=0)}; {plan.moves.before} layout {percent(before)}"
    said += "" if bound is None else f"; proven bound {percent(bound)}"
    box = {"y": BAR_TOP_PX, "height": BAR_HEIGHT_PX}
    parts = [
        element("rect", class_="track", x=0, width="100%", **box),
        element("rect", class_="after" if share >= target else "short", x=0, width=_at(share), **box),
        *_mark("target", target, f"target {percent(target, digits=0)}", line=-1, room=0.5),
    ]
    if bound is not None:
        parts += _mark("bound", bound, f"proven bound {percent(bound)}", line=1, room=0.6)
    parts += _mark("was", before, f"{plan.moves.before} {percent(before)}", line=0, room=0.3)
    return drawing(parts, label=f"{said}.", class_="gauge", width="100%", height=HEIGHT_PX)


def _mark(style: str, share: float, text: str, *, line: int, room: float) -> list[Element]:
    """Draw an upright line through the bar with its words, above it (line -1) or in a line below it.

    The words stand to the right of the line up to the share ``room``, beyond it to the left.
    """
    above = line < 0
    bottom = BAR_TOP_PX + BAR_HEIGHT_PX
    end = 4 if above else bottom + 6 + line * LINE_PX
    y = 15 if above else bottom + (line + 1) * LINE_PX
    to_the_left = share > room
    words = element(
        "text",
        x=_at(share),
        y=y,
        dx=-6 if to_the_left else 6,
        text_anchor="end" if to_the_left else "start",
        class_=style,
    )
    words.text = text
    stroke = {"y1": end if above else BAR_TOP_PX, "y2": bottom if above else end}
    return [element("line", class_=style, x1=_at(share), x2=_at(share), **stroke), words]


def _at(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.3f}%"
