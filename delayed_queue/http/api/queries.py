"""Query parameters by one rule: each is known, and comes once unless it is a list."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import did_you_mean
from delayed_queue.http.api.bodies import MAX_ERRORS, MAX_PATH, Problem

if TYPE_CHECKING:
    from django.http import QueryDict
    from ninja.operation import Operation

# To compare a name with the known ones takes long: only the first unknown ones get a guess.
MAX_GUESSES: Final = 3


def check_query(query: QueryDict, single: Collection[str], lists: Collection[str] = ()) -> None:
    """Refuse unknown parameters and doubled ones with Problem 400, each by its name."""
    if errors := list(islice(_errors(query, single, lists), MAX_ERRORS + 1)):
        raise Problem(400, "invalid_request", "Invalid request", errors=errors)


def _errors(
    query: QueryDict, single: Collection[str], lists: Collection[str]
) -> Iterator[dict[str, str]]:
    known, guesses = [*single, *lists], 0
    for name, values in query.lists():
        message = ""
        if name not in known:
            hint = did_you_mean(name, known) if guesses < MAX_GUESSES else ""
            message, guesses = f"The call has no such parameter.{hint}", guesses + 1
        elif name in single and len(values) > 1:
            message = "The parameter must not be repeated."
        if message:
            yield {"in": "query", "path": name[:MAX_PATH], "message": message}


def parameters_of(operation: Operation) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of an operation's query parameters: those that come once, and lists."""
    models = [each for each in operation.models if each.__ninja_param_source__ == "query"]
    names = {name for each in models for name in each.__ninja_flatten_map__}
    lists = {name for each in models for name in each.__ninja_collection_fields__}
    return frozenset(names - lists), frozenset(lists)
