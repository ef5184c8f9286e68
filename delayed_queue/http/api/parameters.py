"""Types that several calls share: names of topics and jobs, ids, pages, instants."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from delayed_queue.http.jobs.requests import MAX_ID, TopicName
from delayed_queue.http.reading import between, printable
from delayed_queue.messages import MAX_KEY_LENGTH

S = TypeVar("S", bound=Struct)

JobId = Annotated[str, printable(MAX_KEY_LENGTH)]
Id = Annotated[int, between(1, MAX_ID)]
Limit = Annotated[int, between(1, 100)]
Time = Annotated[datetime, Meta(tz=True)]


class PageQuery(Struct, forbid_unknown_fields=True):
    """A page of a list: of one topic or of all, after an id."""

    topic: TopicName | UnsetType = UNSET
    after: Annotated[int, between(0, MAX_ID)] = 0
    limit: Limit = 20


def shown(found: object, kind: type[S]) -> S:
    """Return the reply with the attributes of the same names."""
    return convert(found, kind, from_attributes=True)
