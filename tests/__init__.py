"""Automated checks; mirrors the packages. tests/bench holds benchmarks that print tables."""
