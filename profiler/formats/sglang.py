"""SGLang's layout file: JSON with ``physical_to_logical_map`` and nothing else.

``--init-expert-location`` hands every key of the file to a function as keyword arguments
(``srt/eplb/expert_location.py``, ``compute_initial_expert_location_metadata``), so one further key stops the engine at
start; and it takes its value for a file only when it ends in ``.json``, otherwise for JSON itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import LayoutMismatch
from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.formats.expert_ids import slot_table

MAP_KEY = "physical_to_logical_map"
FILE_SUFFIX = ".json"


def parse_map(document: Mapping[str, Any]) -> tuple[npt.NDArray[np.int32], list[Notice]]:
    """Read the map, int32 [L, P], from a parsed file.

    Further keys are left out with an ``EXTRA_KEYS`` notice: what is written from the result has the one key.

    Raises
    ------
    BadMapShape, ExpertIdRange
    """
    slots_LP, notices = slot_table(document[MAP_KEY], key=MAP_KEY)
    others = sorted(set(document) - {MAP_KEY})
    if others:
        detail = f"SGLang refuses to start with {', '.join(others)} beside {MAP_KEY}: left out; export the layout anew."
        notices.append(Notice("EXTRA_KEYS", detail))
    return slots_LP, notices


def render_map(layout: Layout, model: ModelShape | None) -> bytes:
    """Return the file's bytes: one row per decoder layer, each on a line of its own.

    Raises
    ------
    LayoutMismatch
        The layout has not a row for every decoder layer of the model.
    """
    if model is not None and layout.layers != model.layers:
        raise LayoutMismatch(
            f"the layout has {layout.layers} rows, the model {model.layers} decoder layers; SGLang needs a row for "
            "every decoder layer: plan again with the model's config."
        )
    rows = ",\n".join(json.dumps(row) for row in layout.slot_to_expert_LP.tolist())
    return f'{{"{MAP_KEY}": [\n{rows}\n]}}\n'.encode()
