"""An SMS provider that reports its stage before and after its call, and can be held there."""

from __future__ import annotations

from typing import Any

from aiohttp import ClientSession

from delayed_queue.notifications.providers import Outcome
from delayed_queue.notifications.providers.http import HttpSmsProvider
from delayed_queue.notifications.services import Outgoing


class StagedProvider(HttpSmsProvider):
    """Reaches ``before``, calls, reaches ``after``."""

    def __init__(self, name: str, *, url: str, **options: Any) -> None:
        super().__init__(name, url=url, **options)
        self._stages = url.replace("/messages", "/reached/")

    async def send(self, begun: Outgoing) -> Outcome:
        await self._reach("before", begun)
        outcome = await super().send(begun)
        await self._reach("after", begun)
        return outcome

    async def _reach(self, stage: str, begun: Outgoing) -> None:
        fields = {"reference": str(begun.id), "text": begun.body}
        async with ClientSession() as session, session.post(self._stages + stage, json=fields):
            pass
