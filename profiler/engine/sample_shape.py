"""What the engine's model looks like, which sampled ids cannot be read without."""

from __future__ import annotations

from pathlib import Path

from placement.errors import BadModelConfig
from placement.model_shape import ModelShape
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.server_facts import ServerFacts
from profiler.errors import EngineError, ModelUnknown, UnreadableInput
from profiler.json_file import read_json


def running_placement(client: EngineClient) -> Placement | None:
    """Return the layout the engine runs, None where no plugin says it."""
    try:
        return client.placement()
    except EngineError:
        return None


def model_shape(
    client: EngineClient, facts: ServerFacts, placement: Placement | None, *, model: ModelShape | None
) -> ModelShape:
    """Take what the caller knows, else what the plugin says, else the ``config.json`` in the engine's model folder.

    Raises
    ------
    ModelUnknown
        None of them is there.
    """
    if model is not None:
        return model
    if placement is not None and placement.top_k is not None:
        return ModelShape(
            layers=placement.layers,
            experts=placement.experts,
            top_k=placement.top_k,
            moe_layers=placement.moe_layers,
            name=placement.model,
        )
    config = Path(facts.model) / "config.json"
    try:
        found = read_json(config) if facts.model and config.is_file() else None
        if isinstance(found, dict):
            return ModelShape.from_config(found, name=facts.model)
    except (UnreadableInput, BadModelConfig, OSError, ValueError):
        pass
    raise ModelUnknown(
        f"{client.url} runs {facts.model or 'a model'} and does not say how many layers and experts that has; give the "
        "model's config.json with --model."
    )
