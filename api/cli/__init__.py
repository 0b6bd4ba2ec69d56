"""The ``moeplan`` command."""

from __future__ import annotations

from api.cli.app import main

__all__ = ["main"]
