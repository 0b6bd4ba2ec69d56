"""The options of a plan as they are sent and stored: JSON in, the values of :mod:`api.plan_request` out.

Models and hardware are either named, and then come with moeplan, or sent themselves: no text of a request is ever
looked up as a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.errors import BadRequest
from api.plan_request import PlanRequest
from api.step_option import step_of
from placement.dispatch import Dispatch
from placement.hardware import HardwareProfile
from placement.model_shape import ModelShape
from placement.problem import LocalScope, Objective
from placement.topology import from_cost_matrix
from profiler.hardware import hardware_names, known_hardware
from profiler.hardware.profile_file import parse_hardware
from profiler.model_file import known_model_config, model_names
from profiler.readers.options import ReadOptions

KINDS: Mapping[str, Any] = {"objective": Objective, "local_scope": LocalScope, "dispatch": Dispatch}

BESIDE = ("costs", "model", "test_trace_ids")
"""Options that are no fields of a request: what they hold is read by itself."""


def request_of(options: Mapping[str, Any], **files: Any) -> PlanRequest:
    """Return what is asked of a plan; ``files`` are fields that are paths.

    Raises
    ------
    InvalidInput
        The options contradict each other, as on the command line.
    BadRequest
        There is no such hardware.
    """
    values = {
        name: KINDS[name](value) if name in KINDS else value
        for name, value in options.items()
        if name not in (*BESIDE, "hardware")
    }
    return PlanRequest(**values, hardware=_hardware_of(options.get("hardware")), **files)


def read_options_of(options: Mapping[str, Any]) -> ReadOptions:
    """Return how recordings are read. Raises :class:`BadRequest`, :class:`BadModelConfig`."""
    model = options.get("model")
    if isinstance(model, str):
        config = known_model_config(model)
        if config is None:
            raise BadRequest(f"there is no model {model[:80]!r}; there are {', '.join(model_names())}.")
        model = config
    return ReadOptions(model=None if model is None else ModelShape.from_config(model))


def require_valid(options: Mapping[str, Any]) -> None:
    """Refuse now what the job would refuse later; errors are those of the other functions."""
    request = request_of(options)
    step_of(request, read_options_of(options))
    if options.get("costs") is not None:
        from_cost_matrix(options["costs"], gpus=options["gpus"])


def _hardware_of(given: str | Mapping[str, Any] | None) -> HardwareProfile | None:
    if given is None:
        return None
    if isinstance(given, str):
        profile = known_hardware(given)
        if profile is None:
            raise BadRequest(f"there is no hardware {given[:80]!r}; there are {', '.join(hardware_names())}.")
        return profile
    return parse_hardware(given, name="hardware")
