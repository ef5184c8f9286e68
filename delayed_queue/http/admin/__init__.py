"""The admin of topics, tokens, endpoints and hosts."""

from __future__ import annotations

from importlib.util import find_spec

from delayed_queue.http.admin.attempts import CallbackAttemptAdmin, attempts_of_job
from delayed_queue.http.admin.tokens import ApiTokenAdmin
from delayed_queue.http.admin.topics import TopicAdmin
from delayed_queue.queue.hooks import hooks

__all__ = ["ApiTokenAdmin", "CallbackAttemptAdmin", "TopicAdmin"]

hooks.panels.append(attempts_of_job)

# Tables of callbacks are shown only with the extra that callbacks need.
if find_spec("aiohttp") and find_spec("cryptography"):
    from delayed_queue.http.admin.endpoints import EndpointAdmin, HostAdmin

    __all__ += ["EndpointAdmin", "HostAdmin"]
