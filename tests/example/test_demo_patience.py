"""What the demo says while it waits, and when it gives an act up: by progress, not by time."""

from __future__ import annotations

import io

import pytest
from django.core.management.base import OutputWrapper

from example_project.demo.console import Console, Patience, Stalled


class Clock:
    """Goes on when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_moves_is_waited_for_however_long_it_takes():
    clock = Clock()
    timeout = Patience(60, clock)
    for left in range(100, 0, -1):
        clock.now += 59
        timeout.see(f"{left} wait")


def test_what_stands_still_is_given_up_after_a_minute():
    clock = Clock()
    timeout = Patience(60, clock)
    timeout.see("2,756 wait")
    clock.now = 60
    timeout.see("2,756 wait")
    clock.now = 60.1
    with pytest.raises(Stalled, match=r"^No progress for 60 s: 2,756 wait\.$"):
        timeout.see("2,756 wait")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(out: io.StringIO) -> str:
    """Return what is written of two lines, with something that is waited for in between."""
    console = Console(OutputWrapper(out), OutputWrapper(out), colour=False)
    console.say("ORDERS\n")
    for left in ("2", "1"):
        console.progress(f"{left} wait")
    console.say("over")
    return out.getvalue()


def test_a_terminal_has_one_line_for_what_is_waited_for_and_a_file_the_steps_alone():
    erased = "\r\x1b[K"
    assert said(io.StringIO()) == "ORDERS\n\nover\n"
    waits = f"{erased}  2 wait{erased}  1 wait{erased}over\n"
    assert said(Terminal()) == f"{erased}ORDERS\n\n{waits}"
