"""The guide says what the code has: the kinds of providers, the classification."""

from __future__ import annotations

import inspect
from typing import Any, Final

import pytest
from django.utils.module_loading import import_string

from delayed_queue.notifications.channels import KINDS, routes_of
from delayed_queue.notifications.providers import Verdict
from delayed_queue.notifications.providers.http import STATUSES
from tests.notifications.configured import configure
from tests.support import documents

GUIDE: Final = documents.DOCS / "guides" / "dispatching.md"


def test_the_table_of_kinds_has_every_kind_and_option():
    rows = documents.table(GUIDE, "kind", "sends", "options")
    assert {documents.code(row[0]) for row in rows} == set(KINDS)
    for name, _, options in rows:
        made = inspect.signature(import_string(KINDS[documents.code(name)]))
        known = {each for each in made.parameters if each not in ("name", "options")}
        assert set(documents.INLINE_CODE.findall(options)) - {"{recipient}"} == known


@pytest.mark.parametrize(
    ("verdict", "statuses"),
    [
        (Verdict.TRANSIENT, {401, 402, 403, 408, 425, 429, 503}),
        (Verdict.AMBIGUOUS, {409, 500, 502, 504}),
        (Verdict.ACCEPTED, {200, 201, 202, 204}),
    ],
)
def test_statuses_mean_what_the_table_says(verdict: Verdict, statuses: set[int]):
    assert {STATUSES[status] for status in statuses} == {verdict}
    assert not {400, 404, 410, 413, 422} & set(STATUSES)


def test_the_example_of_the_guide_makes_providers(settings):
    namespace: dict[str, Any] = {}
    for block in documents.blocks(GUIDE, "python"):
        exec(block.text, namespace)  # noqa: S102 - our own page
    configure(settings, namespace["DELAYED_QUEUE"]["NOTIFICATIONS"])
    names = {route.name for channel in ("email", "sms", "webhook") for route in routes_of(channel)}
    assert names == {"relay", "first", "second", "hooks"}
