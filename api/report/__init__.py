"""A plan as one HTML page to attach to a ticket: nothing is loaded from elsewhere, nothing runs in it."""

from api.report.render import render_report

__all__ = ["render_report"]
