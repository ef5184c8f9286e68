"""Failures of one cause have one fingerprint, for all messages (O8)."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delayed_queue.queue.fingerprints import describe, fingerprint, generalized

TRACE = (
    'Traceback (most recent call last):\n  File "{root}/shop/orders/handlers.py", line {line}, in '
    'close\n    pay()\n  File "{root}/lib/site-packages/pay.py", line 3, in pay\n    raise E\n'
    "pay.errors.Refused: {message}\n"
)
words = st.text(alphabet="abc XYZ.:-_äß", max_size=40)
ids = st.one_of(
    st.integers(min_value=0).map(str),
    st.uuids().map(str),
    st.from_regex(r"[a-z]{0,5}-?[0-9]+", fullmatch=True),
)


def trace(message: str = "no", line: int = 1, root: str = "/srv") -> str:
    return TRACE.format(message=message, line=line, root=root)


@given(words, ids, ids, words)
def test_numbers_and_ids_make_no_difference(before: str, one: str, other: str, after: str) -> None:
    texts = [f"{before} {each} {after}" for each in (one, other)]
    assert fingerprint("failed", trace(texts[0])) == fingerprint("failed", trace(texts[1]))
    assert fingerprint(texts[0], None) == fingerprint(texts[1], None)


@given(
    words, st.text(alphabet="abc 12", max_size=20), st.text(alphabet="xyz 34", max_size=9), words
)
def test_nor_do_quoted_values(before: str, one: str, other: str, after: str) -> None:
    for quote in "'\"`":
        texts = [f"{before} {quote}{each}{quote} {after}" for each in (one, other)]
        assert fingerprint(texts[0], None) == fingerprint(texts[1], None)


@given(st.text(), st.none() | st.text())
def test_it_is_sixteen_digits_of_any_text(reason: str, error: str | None) -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(reason, error))


@given(st.text())
@example("\x000")
@example("HTTP 404.17")
def test_what_was_generalized_stays_as_it_is(text: str) -> None:
    once = generalized(text)
    assert not any(each.isdigit() for each in re.sub(r"\b(HTTP|status) [1-5]\d\d", "", once))


def test_neither_the_line_nor_the_host_makes_a_difference() -> None:
    assert fingerprint("a", trace(line=7)) == fingerprint("a", trace(line=90, root="/opt/x"))


def test_the_place_is_the_innermost_of_the_project() -> None:
    assert describe("x", trace("card 12 of 'Ann'")) == (
        "pay.errors.Refused: card # of '…' · orders/handlers.py in close"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("HTTP 404", None), ("HTTP 500", None)),
        (("refused", None), ("timed out", None)),
        (("a", trace("timed out")), ("a", trace("refused"))),
        (("a", trace()), ("a", trace().replace("Refused", "Lost"))),
        (("a", trace()), ("a", trace().replace("in close", "in open"))),
    ],
)
def test_other_causes_have_other_fingerprints(one, other):
    assert fingerprint(*one) != fingerprint(*other)


def test_an_apostrophe_quotes_nothing() -> None:
    assert describe("can't pay Ann's bill", None) != describe("can't pay Bob's bill", None)


def test_of_an_error_of_several_lines_it_is_the_first() -> None:
    one, other = (trace(f"no such order\n{detail}") for detail in ("one", "two"))
    assert fingerprint("a", one) == fingerprint("a", other)
    assert describe("a", one).startswith("pay.errors.Refused: no such order · ")
