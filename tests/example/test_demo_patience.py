"""The demo fails an act after a time without progress, and prints the progress."""

from __future__ import annotations

import io
import time
from itertools import count

import pytest
from django.core.management.base import OutputWrapper
from django.core.management.color import no_style

from example_project.demo import stage
from example_project.demo.report import Console, Row, Stalled
from example_project.demo.stage import Stage


def console(out: io.StringIO) -> Console:
    return Console(OutputWrapper(out), OutputWrapper(out), no_style())


@pytest.fixture
def a_stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(stage, "LOOK_SECONDS", 0.01)
    return Stage(console(io.StringIO()), timeout=0.2)


def test_what_moves_is_waited_for_however_long_it_takes(a_stage: Stage):
    ends_at, moves = time.monotonic() + 0.6, count()
    a_stage.wait(lambda: time.monotonic() > ends_at, lambda: f"{next(moves)} wait")


def test_what_stands_still_is_given_up(a_stage: Stage):
    with pytest.raises(Stalled, match=r"^No progress for 0.2 s: 2,756 wait\.$"):
        a_stage.wait(lambda: False, lambda: "2,756 wait")


def test_a_client_that_fails_ends_what_is_waited_for(a_stage: Stage):
    def fail() -> None:
        raise LookupError("no such job")

    moves = count()
    with a_stage.threads() as clients:
        clients.start(fail)
        with pytest.raises(Stalled, match=r"^A client failed: LookupError: no such job$"):
            a_stage.wait(lambda: False, lambda: f"{next(moves)} wait")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(out: io.StringIO) -> str:
    """Return the output of two lines, with progress between them."""
    found = console(out)
    found.say("ORDERS\n")
    for left in ("2", "1"):
        found.progress(f"{left} wait")
    found.say("over")
    return out.getvalue()


def test_a_terminal_has_one_line_for_what_is_waited_for_and_a_file_the_steps_alone():
    erased = "\r\x1b[K"
    assert said(io.StringIO()) == "ORDERS\n\nover\n"
    waits = f"{erased}  2 wait{erased}  1 wait{erased}over\n"
    assert said(Terminal()) == f"{erased}ORDERS\n\n{waits}"


def test_a_figure_stands_under_the_others_and_has_no_blanks_behind_it():
    assert str(Row("paid", 4572, "in time")) == "paid             4,572  in time"
    assert str(Row("seconds", 35.6)) == "seconds             36"
    assert str(Row("lake", "/tmp/lake")) == "lake           /tmp/lake"  # noqa: S108
