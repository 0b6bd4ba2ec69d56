"""From view data to a page, with the headers that keep pages to themselves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined

from api.errors import KeyMissing, KeyRefused, NotFound, SessionOver
from api.http.edge import Edge
from api.http.problems import status_of
from api.pages import words
from api.pages.assets import Assets
from api.report import numbers
from api.states import Level
from placement.errors import CodedError

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}

NEEDS_SIGN_IN = (KeyMissing, KeyRefused, SessionOver)


class Pages:
    """Renders templates; made once for an application (``app.state.pages``)."""

    def __init__(self, assets: Assets) -> None:
        self.assets = assets
        self._environment = Environment(
            loader=PackageLoader("api.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals["asset"] = assets.url
        self._environment.filters |= {
            "percent": numbers.percent,
            "fine_percent": numbers.fine_percent,
            "ratio": numbers.ratio,
            "count": numbers.count,
            "bytes": numbers.byte_size,
            "times": numbers.times,
            "ago": words.ago,
            "moment": words.moment,
            "seconds": words.seconds,
            "plain": words.plain,
        }

    def page(self, edge: Edge, template: str, *, section: str, title: str, **view: Any) -> Response:
        """Render a page for whoever asks.

        Parameters
        ----------
        section
            Which entry of the navigation it belongs to.
        """
        return self._rendered(
            template,
            status=200,
            section=section,
            title=title,
            who=edge.caller.who,
            may_change=edge.caller.level is Level.ADMIN,
            csrf_token=edge.csrf_token,
            path=edge.request.url.path,
            **view,
        )

    def bare(self, template: str, *, status: int, title: str, **view: Any) -> Response:
        """Render a page for somebody who is not known: signing in, errors."""
        return self._rendered(
            template, status=status, section="", title=title, who="", may_change=False, csrf_token="", path="", **view
        )

    def _rendered(self, template: str, *, status: int, **view: Any) -> Response:
        text = self._environment.get_template(template).render(view)
        return HTMLResponse(text, status_code=status, headers=dict(SECURITY_HEADERS))


class PageRoute(APIRoute):
    """A route whose errors are pages too: sign in where a key is missing, else a sentence and what to do next."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except NEEDS_SIGN_IN:
                asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(asked, safe='')}", status_code=303)
            except RequestValidationError:
                error = NotFound(f"there is no page {request.url.path} with these choices.")
                return error_page(pages_of(request), error)
            except CodedError as error:
                return error_page(pages_of(request), error)

        return answered


def error_page(pages: Pages, error: CodedError) -> Response:
    """Say what went wrong, as the API would."""
    status = status_of(error)
    title = (type(error).__doc__ or "").strip().splitlines()[0].rstrip(".")
    return pages.bare(
        "error.html.j2",
        status=status,
        title=title or HTTPStatus(status).phrase,
        code=error.code,
        detail=error.detail,
        remedies=error.remedies,
    )


def pages_of(request: Request) -> Pages:
    """Return the renderer of the application that a request came to."""
    pages: Pages = request.app.state.pages
    return pages
