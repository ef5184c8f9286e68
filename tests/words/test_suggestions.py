"""One guess for an unknown name, at a bounded cost."""

from __future__ import annotations

import pytest

from delayed_queue import exceptions
from delayed_queue.exceptions import MAX_KNOWN, MAX_LENGTH, suggest


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("jobid", ["jobId", "topic"], "jobId"), ("NOTIFI", ["NOTIFY", "CRON"], "NOTIFY"),
        ("notify", ["NOTIFY"], "NOTIFY"), ("zzz", ["topic"], None), ("", ["topic"], None),
        (5, ["5"], None), (None, ["None"], None),
    ],
)  # fmt: skip
def test_the_name_that_is_most_like_it_is_meant(name: object, known: list[str], meant: str | None):
    assert suggest(name, known) == meant


def test_what_is_compared_is_bounded(monkeypatch: pytest.MonkeyPatch):
    compared: list[int] = []

    def count(name: str, known: dict[str, str], n: int) -> list[str]:
        compared.append(len(name) * len(known))
        return []

    monkeypatch.setattr(exceptions, "get_close_matches", count)
    suggest("x" * (MAX_LENGTH + 1), ["x"])
    assert compared == []
    suggest("x" * MAX_LENGTH, map(str, range(10**6)))
    assert compared == [MAX_LENGTH * MAX_KNOWN]
