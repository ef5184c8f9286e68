"""When the demo gives an act up: by progress, not by time."""

from __future__ import annotations

import pytest

from example_project.demo.console import Patience, Stalled


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
