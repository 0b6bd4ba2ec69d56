"""Files that come with moeplan: hardware profiles and model configurations, found by name."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def preset_names(kind: str, *, suffix: str) -> tuple[str, ...]:
    """Return the names of the presets of a kind (a folder here), in alphabetical order."""
    return tuple(sorted(path.stem for path in (FOLDER / kind).glob(f"*{suffix}")))


def find_preset(name: str, kind: str, *, suffix: str) -> Path | None:
    """Return the preset's file, or None where there is none of this name; case and underscores do not matter."""
    wanted = name.lower().replace("_", "-")
    return next(
        (FOLDER / kind / f"{each}{suffix}" for each in preset_names(kind, suffix=suffix) if each == wanted), None
    )
