"""A model's configuration: a Hugging Face ``config.json``, or one that comes with moeplan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placement.errors import BadModelConfig
from profiler.errors import InputNotFound
from profiler.json_file import read_json
from profiler.presets import find_preset, preset_names

KIND = "models"
SUFFIX = ".json"


def model_names() -> tuple[str, ...]:
    """Return the names of the models that come with moeplan."""
    return preset_names(KIND, suffix=SUFFIX)


def known_model_config(name: str) -> dict[str, Any] | None:
    """Return the configuration of a model that comes with moeplan, None where there is none of this name."""
    preset = find_preset(name, KIND, suffix=SUFFIX)
    return None if preset is None else read_model_config(preset)


def read_model_config(name: str | Path) -> dict[str, Any]:
    """Parse a configuration: a file (or the folder with its ``config.json``), else a preset by its name.

    Raises
    ------
    InputNotFound
        Neither of them, naming the presets.
    UnreadableDump, BadJson
        See :func:`profiler.json_file.read_json`.
    BadModelConfig
        The file holds no JSON object.
    """
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        preset = find_preset(str(name), KIND, suffix=SUFFIX)
        if preset is None:
            raise InputNotFound(
                f"{name} is neither a file nor a model that moeplan knows by name: {', '.join(model_names())}."
            )
        path = preset
    config = read_json(path)
    if not isinstance(config, dict):
        raise BadModelConfig(f"{path.name} holds {type(config).__name__}; a JSON object is needed.")
    return config
