"""Providers over HTTP: SMS by one POST, webhooks by the callback client."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from aiohttp import (
    ClientError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    TraceConfig,
)
from django.db import Error

from delayed_queue.db.clock import adatabase_now
from delayed_queue.db.gathering import LoopLocal
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.exceptions import (
    InvalidConfiguration,
    InvalidMessage,
    ResourceUnavailable,
    UrlRefused,
)
from delayed_queue.http.callbacks.breaker import Breaker, Deferred
from delayed_queue.http.callbacks.calls import (
    CallbackRequest,
    CallbackResult,
    Failure,
    retry_after_of,
    sign,
)
from delayed_queue.http.callbacks.client import send
from delayed_queue.http.callbacks.endpoints import place_of
from delayed_queue.http.callbacks.guard import as_given
from delayed_queue.http.conf import callback_settings
from delayed_queue.notifications.providers import (
    LoopProvider,
    Outcome,
    Verdict,
    cleaned,
    failed,
    shown_code,
)
from delayed_queue.notifications.services import USING, Outgoing
from delayed_queue.rates import State

MAX_ANSWER: Final = 64 * 1024
FIELDS: Final = {"to": "{recipient}", "text": "{body}", "reference": "{id}"}

# The verdict on a status that ``codes`` does not contain. Failures of our account, our address and
# outages do not concern the message: another provider may accept it. After 500, 502 and 504 the
# request may have been processed, and 409 is the answer for a key whose first request still runs.
STATUSES: Final[Mapping[int, Verdict]] = {
    **dict.fromkeys(range(200, 300), Verdict.ACCEPTED),
    **dict.fromkeys(range(300, 400), Verdict.TRANSIENT),
    **dict.fromkeys((401, 402, 403, 407, 408, 421, 425, 501, 503, 505), Verdict.TRANSIENT),
    429: Verdict.BUSY,
    **dict.fromkeys((409, 500, 502, 504), Verdict.AMBIGUOUS),
}


@dataclass(slots=True)
class _Wire:
    """The progress of one call: sent, and how much of its answer has arrived."""

    is_sent: bool = False
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    @property
    def is_refused(self) -> bool:
        """Return whether the status is not 2xx."""
        return self.status != 0 and not 200 <= self.status <= 299


@dataclass(eq=False)
class HttpSmsProvider(LoopProvider):
    """POSTs ``fields``, with ``{recipient}``, ``{body}`` and ``{id}`` replaced.

    ``encoding`` is "json" or "form". ``idempotency_header`` contains the notification's id.
    ``codes`` maps values of the answer's ``code_field``, and statuses as text, to verdicts:
    {"201": "accepted", "blocked": "permanent"}. ``id_field`` contains the provider's own id. Times
    are in seconds.
    """

    name: str
    url: str
    fields: Mapping[str, str] = field(default_factory=lambda: FIELDS)
    encoding: str = "json"
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotency_header: str = ""
    id_field: str = "id"
    code_field: str = "code"
    codes: Mapping[str, str] = field(default_factory=dict)
    connect_timeout: float = 3.0
    timeout: float = 10.0

    def __post_init__(self) -> None:
        self.is_idempotent = bool(self.idempotency_header)
        self._target = as_given(self.url)
        self._verdicts = {code: Verdict(verdict) for code, verdict in self.codes.items()}
        self._sessions = LoopLocal(self._new_session, ClientSession.close)

    async def send(self, outgoing: Outgoing) -> Outcome:
        session = self._sessions.of(None)
        wire = _Wire()
        try:
            async with asyncio.timeout(self.timeout):
                await self._post(session, outgoing, wire)
        # A header that cannot be written is a ValueError.
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            if not wire.is_refused:
                return failed(Verdict.AMBIGUOUS if wire.is_sent else Verdict.TRANSIENT, error)
        return self._read(wire)

    async def _post(self, session: ClientSession, outgoing: Outgoing, wire: _Wire) -> None:
        filled = self._filled(outgoing)
        content: dict[str, Any] = {"json" if self.encoding == "json" else "data": filled}
        async with session.post(
            self._target, headers=self._headers_for(outgoing), allow_redirects=False,
            trace_request_ctx=wire, **content,
        ) as response:  # fmt: skip
            wire.status, wire.headers = response.status, response.headers
            # Read to the end, because the first part may lack the code.
            while len(wire.body) < MAX_ANSWER:
                chunk = await response.content.read(MAX_ANSWER - len(wire.body))
                if not chunk:
                    return
                wire.body += chunk

    def check(self, probe: Outgoing) -> None:
        body = json.dumps(self._filled(probe)).encode()
        CallbackRequest(self.url, body, self._headers_for(probe))

    def _filled(self, outgoing: Outgoing) -> dict[str, str]:
        # Not str.format, by which a field could read attributes of objects.
        values = {
            "{recipient}": outgoing.recipient,
            "{body}": outgoing.body,
            "{id}": str(outgoing.id),
        }
        return {name: values.get(field, field) for name, field in self.fields.items()}

    def _headers_for(self, outgoing: Outgoing) -> Mapping[str, str]:
        if not self.idempotency_header:
            return self.headers
        return {**self.headers, self.idempotency_header: str(outgoing.id)}

    def _read(self, wire: _Wire) -> Outcome:
        status, text = wire.status, wire.body.decode("utf-8", "replace")
        answer = _object_of(text)
        code = str(answer.get(self.code_field, ""))
        verdict, shown = self._verdict(status, code), shown_code(code) or str(status)
        if verdict is Verdict.ACCEPTED:
            return Outcome(verdict, shown, str(answer.get(self.id_field, ""))[:200])
        return Outcome(
            verdict, shown,
            retry_after=retry_after_of(wire.headers, callback_settings().RETRY_AFTER_LIMIT),
            detail=cleaned(text), blames_provider=status >= 500 or status in (401, 402, 403),
        )  # fmt: skip

    def _verdict(self, status: int, code: str) -> Verdict:
        for known in (code, str(status)):
            if known in self._verdicts:
                return self._verdicts[known]
        return STATUSES.get(status, Verdict.PERMANENT)

    # Connections

    def _new_session(self, key: None) -> ClientSession:
        trace = TraceConfig()
        trace.on_request_headers_sent.append(_note_sent)
        return ClientSession(
            connector=TCPConnector(limit=0),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, connect=self.connect_timeout, ceil_threshold=1e9),
            # 64 KiB may expand to 64 MiB.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
            trace_configs=[trace],
        )

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        await self._sessions.close()


async def _note_sent(session: ClientSession, context: Any, params: Any) -> None:
    context.trace_request_ctx.is_sent = True


def _object_of(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


LEFT_ALONE: Final = "host-left-alone"
OUTAGE_WAIT: Final = (1.0, 5.0)


class WebhookProvider(LoopProvider):
    """Posts to the recipient's URL.

    The ``webhook-id`` is the notification's id at every attempt, and receivers must act once per
    id, so a message in doubt is sent again. Hosts are those of the callbacks: a slow one gets only
    its share of the slots. All workers pause calls to one that is down, which counts as a failed
    attempt.
    """

    is_idempotent = True

    def __init__(self, name: str, *, secrets: Sequence[str]) -> None:
        self.name = name
        self._secrets = list(secrets)
        self._breakers: LoopLocal[str, Breaker] = LoopLocal(Breaker)

    async def send(self, outgoing: Outgoing) -> Outcome:
        body = outgoing.body.encode()
        now = int((await adatabase_now(USING)).timestamp())
        try:
            headers = sign(self._secrets, str(outgoing.id), now, body)
            request = CallbackRequest(outgoing.recipient, body, headers)
            host = place_of(outgoing.recipient).host
        except UrlRefused:
            return Outcome(Verdict.PERMANENT, str(Failure.BLOCKED))
        except InvalidMessage as error:
            return failed(Verdict.PERMANENT, error)
        except InvalidConfiguration as error:
            return failed(Verdict.TRANSIENT, error)
        return await self._send(request, host, str(outgoing.id))

    def check(self, probe: Outgoing) -> None:
        sign(self._secrets, str(probe.id), 0, probe.body.encode())

    async def _send(self, request: CallbackRequest, host: str, key: str) -> Outcome:
        try:
            async with self._breakers.of(USING).admit(host) as call:
                call.start()
                call.result = result = await send(request)
        except Deferred as error:
            if error.host is not None and error.host.circuit.state is State.OPEN:
                return Outcome(Verdict.TRANSIENT, LEFT_ALONE)
            return Outcome(Verdict.POSTPONED, retry_after=error.delay)
        except (Error, ResourceUnavailable) as error:
            # Nothing was sent: the database is unavailable, or refuses this call's host.
            if not is_unavailable(error):
                return failed(Verdict.TRANSIENT, error)
            delay = random.uniform(*OUTAGE_WAIT)  # noqa: S311 - to spread a herd
            return Outcome(Verdict.POSTPONED, retry_after=timedelta(seconds=delay))
        return _outcome_of(result, key)


def _outcome_of(result: CallbackResult, key: str) -> Outcome:
    if result.is_success:
        return Outcome(Verdict.ACCEPTED, result.code, key)
    return Outcome(
        _verdict_of(result),
        result.code,
        retry_after=result.retry_after,
        detail=cleaned(result.excerpt),
    )


def _verdict_of(result: CallbackResult) -> Verdict:
    if result.is_final:
        return Verdict.PERMANENT
    if result.is_ambiguous:
        return Verdict.AMBIGUOUS
    if result.status in (None, 429):  # one host of many: the others take as many calls as before
        return Verdict.TRANSIENT
    return STATUSES.get(result.status or 0, Verdict.PERMANENT)
