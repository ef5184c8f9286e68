"""The Django admin of the queues: what is stored, what is held, and what to do about it."""

from __future__ import annotations

from importlib.util import find_spec

from delayed_queue.admin.attempts import CallbackAttemptAdmin
from delayed_queue.admin.letters import DeadLetterAdmin
from delayed_queue.admin.messages import MessageAdmin
from delayed_queue.admin.reports import PipelineReportAdmin
from delayed_queue.admin.schedules import ScheduleAdmin
from delayed_queue.admin.tokens import ApiTokenAdmin
from delayed_queue.admin.topics import TopicAdmin
from delayed_queue.admin.workers import WorkerAdmin

__all__ = [
    "ApiTokenAdmin",
    "CallbackAttemptAdmin",
    "DeadLetterAdmin",
    "MessageAdmin",
    "PipelineReportAdmin",
    "ScheduleAdmin",
    "TopicAdmin",
    "WorkerAdmin",
]

# What only callbacks fill is shown where they can be made: with the extra of that name.
if find_spec("aiohttp") and find_spec("cryptography"):
    from delayed_queue.admin.endpoints import EndpointAdmin
    from delayed_queue.admin.hosts import HostAdmin

    __all__ += ["EndpointAdmin", "HostAdmin"]
