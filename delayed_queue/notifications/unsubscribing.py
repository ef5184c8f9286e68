"""One-click unsubscription (RFC 8058): the headers of a mail, and the page behind their link."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from cryptography.fernet import InvalidToken
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.template import Context, Engine
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from delayed_queue.http.callbacks.secrets import box_of, secret_keys
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.managing import suppress_once
from delayed_queue.notifications.models import Channel
from delayed_queue.notifications.recipients import recipient_hash
from delayed_queue.notifications.services import Outgoing, or_unavailable

# Part of each key: with another text, no link in a sent mail works.
_PURPOSE: Final = b"delayed_queue.notifications.unsubscribing"
_PAGES: Final = Engine(
    dirs=[str(Path(__file__).parent / "templates" / "notifications")],
    builtins=["django.templatetags.i18n"],
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
}


def headers_of(outgoing: Outgoing) -> Mapping[str, str]:
    """Return the headers of RFC 8058; none for mail that recipients cannot opt out of."""
    prefix = get_settings().PUBLIC_URL.rstrip("/")
    if not (prefix and outgoing.category) or outgoing.is_transactional:
        return {}
    token = token_of(outgoing.recipient, outgoing.category)
    return {
        "List-Unsubscribe": f"<{prefix}/unsubscribe/{token}>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    }


def token_of(recipient: str, category: str) -> str:
    """Return the end of a link: recipient and category, encrypted and signed, without expiry.

    The address and not its hash, so that the link survives a new key of the hashes.
    """
    text = msgspec.json.encode([recipient, category])
    return box_of(secret_keys(), _PURPOSE).encrypt(text).decode().rstrip("=")


@login_not_required
@csrf_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def unsubscribe(request: HttpRequest, token: str) -> HttpResponse:
    """Show a page with one button; suppress the recipient in the category at a POST.

    The body of the POST is not read. Neither a session nor a cookie is used.
    """
    recipient, category = _opened(token)
    is_done = request.method == "POST"

    def act() -> HttpResponse:
        if is_done:
            suppress_once(Channel.EMAIL, recipient_hash(Channel.EMAIL, recipient), category)
        return _page(request, is_done=is_done)

    return or_unavailable(act)


def _opened(token: str) -> tuple[str, str]:
    padded = token + "=" * (-len(token) % 4)
    try:
        text = box_of(secret_keys(), _PURPOSE).decrypt(padded)
    except (InvalidToken, ValueError):  # a ValueError for letters outside ASCII
        raise Http404 from None
    recipient, category = msgspec.json.decode(text)
    return recipient, category


def _page(request: HttpRequest, *, is_done: bool) -> HttpResponse:
    with translation.override(translation.get_language_from_request(request)):
        language = translation.get_language() or "en"
        context = Context({"language": language, "is_done": is_done})
        text = _PAGES.get_template("unsubscribe.html").render(context)
    response = HttpResponse(text, headers={**_HEADERS, "Content-Language": language})
    patch_vary_headers(response, ["Accept-Language"])
    return response
