"""What a layout file is read for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.errors import BadOption, ExpertIdRange, ExpertMissing, LayoutMismatch, SlotCountMismatch
from placement.layout import Layout
from placement.notice import Notice

DUPLICATE_ON_DEVICE = "DUPLICATE_ON_DEVICE"


@dataclass(frozen=True)
class Expected:
    """What the caller knows of the engine or plan that a layout must fit; None where unknown.

    Attributes
    ----------
    gpus, experts, layers : int or None
    slots : int or None
        Slots in all: SGLang's experts + ``--ep-num-redundant-experts``.
    """

    gpus: int | None = None
    experts: int | None = None
    layers: int | None = None
    slots: int | None = None


def build_layout(slots_LP: npt.NDArray[np.int32], expected: Expected) -> tuple[Layout, list[Notice]]:
    """Check a table of expert ids against what is expected and give it its sizes.

    Raises
    ------
    SlotCountMismatch, LayoutMismatch, BadOption, ExpertIdRange, ExpertMissing, SlotsNotDivisible
    """
    layers, slots = slots_LP.shape
    if expected.slots is not None and slots != expected.slots:
        raise SlotCountMismatch(
            f"the layout has {slots} slots per layer; expected {expected.slots}, got {slots}: plan with "
            f"{expected.slots} slots, or start the engine with {slots}."
        )
    if expected.layers is not None and layers != expected.layers:
        raise LayoutMismatch(
            f"the layout has {layers} layers; expected {expected.layers}, one row per decoder layer, dense ones too."
        )
    if expected.gpus is None:
        raise BadOption("this layout file does not say for how many GPUs it is; give their number.")
    experts, notices = expected.experts, []
    if experts is None:
        experts = max(int(slots_LP.max()) + 1, 1)
        notices.append(Notice("EXPERTS_INFERRED", f"taken from the largest id in the layout: {experts} experts."))
    _check_fits(slots_LP, experts=experts)
    layout = Layout(slots_LP, gpus=expected.gpus, experts=experts)
    duplicates = layout.duplicated_slots()
    if duplicates:
        detail = f"{duplicates} slots repeat an expert that their GPU already holds: memory without use."
        notices.append(Notice(DUPLICATE_ON_DEVICE, detail))
    return layout, notices


def _check_fits(slots_LP: npt.NDArray[np.int32], *, experts: int) -> None:
    """Find a missing expert without a table as wide as an absurd id is high."""
    if experts <= slots_LP.shape[1]:
        return
    present = set(slots_LP[0].tolist())
    if min(present) < 0:
        raise ExpertIdRange(
            f"layer 0, slot {int(slots_LP[0].argmin())} names expert {min(present)}; ids run from 0 to {experts - 1}."
        )
    missing = next(expert for expert in range(experts) if expert not in present)
    raise ExpertMissing(
        f"layer 0 has no slot for expert {missing}: {slots_LP.shape[1]} slots cannot hold {experts} experts."
    )
