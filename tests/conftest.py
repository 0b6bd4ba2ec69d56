"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine must not fail a test: no example is timed, and equal runs try equal examples.
settings.register_profile("moeplan", deadline=None, derandomize=True)
settings.load_profile("moeplan")
