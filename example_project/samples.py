"""The shipped file of requests, and the templates that it uses.

A line has ``after``, the seconds from the start to its arrival, ``via``, which is rest or broker,
its ``kind``, and either the ``request`` or a ``text`` that is not a JSON object. In requests a time
such as ``+30s`` counts from the arrival, and ``{webhooks}`` stands for the receiver of webhooks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from django.db import transaction

from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.managing import suppress
from delayed_queue.notifications.models import Template

FILE: Final = Path(__file__).parent / "data" / "notifications.jsonl"
TEMPLATES_FILE: Final = FILE.with_name("notification_templates.json")
_TIMES: Final = ("sendAt", "expiresAt")
# People of the file and of the campaign, and how many of them have opted out of offers.
PEOPLE: Final = 3000
OPTED_OUT: Final = 40


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the file."""

    number: int
    after: timedelta
    via: str
    kind: str
    line: dict[str, Any]

    def body(
        self, now: datetime, webhooks: str = "https://hooks.example.org", speed: float = 1.0
    ) -> bytes:
        """Return the request as sent at ``now``, with its times divided by ``speed``."""
        if "text" in self.line:
            return str(self.line["text"]).encode()
        request = dict(self.line["request"])
        for name in _TIMES:
            request[name] = _at(request.get(name), now, speed)
        if isinstance(request.get("to"), str):
            request["to"] = request["to"].replace("{webhooks}", webhooks)
        return json.dumps(
            {name: each for name, each in request.items() if each is not None}
        ).encode()


def _at(value: Any, now: datetime, speed: float) -> Any:
    if not isinstance(value, str) or not value.startswith("+"):
        return value
    return (now + timedelta(seconds=float(value[1:-1]) / speed)).isoformat()


def read_samples(path: Path = FILE) -> Iterator[Sample]:
    """Yield the lines of the file in the order of their arrival."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file):
            line = json.loads(text)
            after = timedelta(seconds=line["after"])
            yield Sample(number, after, line["via"], line["kind"], line)


@transaction.atomic
def set_up() -> None:
    """Add the templates whose last version differs, and the suppressions."""
    wanted = json.loads(TEMPLATES_FILE.read_text(encoding="utf-8"))
    for template in map(_template, wanted):
        if _differs(template):
            add_version(template)
    for each in range(OPTED_OUT):
        suppress("email", person(each * 71 % PEOPLE), "offers")


def person(number: int) -> str:
    return f"customer-{number:04d}@example.{('org', 'com', 'net')[number % 3]}"


def _template(values: dict[str, str]) -> Template:
    return Template(**{"subject": "", "html": "", **values})


def _differs(template: Template) -> bool:
    same = Template.objects.filter(name=template.name, channel=template.channel)
    last = same.order_by("-version").first()
    parts = ("subject", "body", "html", "category")
    return last is None or any(getattr(last, each) != getattr(template, each) for each in parts)
