"""The pages' addresses, one module for each kind of thing; each asks the service and renders a template."""

from __future__ import annotations

from fastapi import APIRouter

from api.pages.rendering import PageRoute


def page_router() -> APIRouter:
    """Return a router of pages: their errors are pages, and the API's description does not have them."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)
