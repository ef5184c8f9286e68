"""The description of an API as a file, and as a page that asks no other host."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.templatetags.static import static

from delayed_queue.http.api.pages import page_of
from delayed_queue.http.api.problems import Problem
from delayed_queue.http.conf import api_settings

View = Any
_STYLE: Final = "delayed_queue/api.css"


def openapi_file(api: Any) -> View:
    """Return the view of the description; paths are those under which it was asked for."""

    @lru_cache(maxsize=8)  # by prefix: one project may mount it twice, an attacker cannot
    def text(prefix: str) -> bytes:
        return json.dumps(api.get_openapi_schema(path_prefix=prefix)).encode()

    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return Problem(405, "method_not_allowed", headers={"Allow": "GET, HEAD"}).as_response()
        prefix = request.path.removesuffix("openapi.json")
        return HttpResponse(text(prefix), content_type="application/json")

    view.csrf_exempt = True  # type: ignore[attr-defined]
    return view


def docs_page(api: Any) -> View:
    """Return the view of the page; 404 unless the setting DOCS, or DEBUG, shows it."""

    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if not is_open():
            return Problem(404, "not_found").as_response()
        schema = api.get_openapi_schema(path_prefix=request.path.removesuffix("docs"))
        response = render(request, "delayed_queue/http/api/docs.html", page_of(schema))
        # Nothing is run and nothing fetched from elsewhere; where the project says more, it counts.
        response.headers.setdefault("Content-Security-Policy", _policy())
        return response

    return view


def _policy() -> str:
    """Allow the page its style sheet and nothing else; static files may be on another host."""
    place = urlsplit(static(_STYLE))
    host = f" {place.scheme}://{place.netloc}" if place.netloc else ""
    return f"default-src 'none'; style-src 'self'{host}; base-uri 'none'; form-action 'none'"


def is_open() -> bool:
    chosen = api_settings().DOCS
    return bool(settings.DEBUG) if chosen is None else chosen
