"""The tree of errors."""

from __future__ import annotations

import inspect

import pytest

from delayed_queue import exceptions
from delayed_queue.exceptions import DelayedQueueError

ERRORS = [
    error
    for _, error in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(error, BaseException)
]


@pytest.mark.parametrize("error", ERRORS)
def test_the_message_defaults_to_the_docstring(error: type[DelayedQueueError]):
    assert str(error()) == str(error.__doc__).splitlines()[0]
    assert str(error("this")) == "this"
    assert str(error("")) == ""
