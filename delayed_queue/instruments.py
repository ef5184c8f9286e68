"""Instruments: a project's own code around offers and handlers, such as metrics and traces."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import product
from types import TracebackType
from typing import Any, Protocol

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from delayed_queue.batch import Batch
from delayed_queue.conf import INSTRUMENT_METHODS, SETTING, get_settings, is_instrument
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import Handler, HandlerFunction, Reject, Snooze
from delayed_queue.logs import log
from delayed_queue.messages import Envelope

Headers = Mapping[str, Any]


class Instrument(Protocol):
    """The interface of an entry of the setting ``INSTRUMENTS``.

    Neither method can break the call it watches: an error is logged, and has no other effect.
    """

    def offering(self, queue: str, headers: Headers | None) -> Headers | None:
        """Return the headers to offer with: the given ones, possibly extended."""
        return headers

    def handling(self, envelope: Envelope) -> AbstractContextManager[Any]:
        """Return the context manager to enter around one call of a handler.

        Its exit receives the handler's error and cannot suppress it. It is entered and left in one
        thread, for an asynchronous handler in one task.
        """


# Instruments of this process in addition to those of the settings.
_added: list[Instrument] = []


@lru_cache(maxsize=1)
def get_instruments() -> tuple[Instrument, ...]:
    """Return the instruments of the settings, made once, then those added; outermost first."""
    return (*(load(each) for each in get_settings().INSTRUMENTS), *_added)


def add_instrument(instrument: Instrument) -> None:
    """Add an instrument to this process, unless it has one of the class."""
    if not any(type(each) is type(instrument) for each in get_instruments()):
        _added.append(instrument)
        get_instruments.cache_clear()


def load(entry: Any) -> Instrument:
    """Return the instrument of an entry: a dotted path is imported, and a class called."""
    try:
        found = import_string(entry) if isinstance(entry, str) else entry
        made: Instrument = found() if isinstance(found, type) else found
    except Exception as error:
        # Foreign code may raise anything; the message of a missing extra names it.
        raise InvalidConfiguration(
            f"The instrument {entry!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not is_instrument(made):
        raise InvalidConfiguration(
            f"The instrument {entry!r} has no {' and '.join(INSTRUMENT_METHODS)} to call."
        )
    return made


def headers_for(queue: str, headers: Headers | None) -> Headers | None:
    """Return the headers that a message is offered with."""
    for each in get_instruments():
        try:
            headers = each.offering(queue, headers)
        # Foreign code that only watches: the offer continues without it.
        except Exception as error:
            _report(each, error)
    return headers


def ending(error: BaseException | None) -> str:
    """Return the outcome of a handler as a word: done, snoozed, rejected or failed."""
    if error is None:
        return "done"
    if isinstance(error, Snooze):
        return "snoozed"
    return "rejected" if isinstance(error, Reject) else "failed"


def wrap(handler: Handler) -> HandlerFunction:
    """Return the handler's function inside the instruments; the function itself without any."""
    return _around(handler.function, is_async=handler.is_async)


def awrap(handler: Handler) -> HandlerFunction:
    """Return the function for the event loop, inside the instruments."""
    treatment = handler.treatment
    return _around(handler.function if treatment is None else treatment.acall, is_async=True)


def _around(function: HandlerFunction, *, is_async: bool) -> HandlerFunction:
    chosen = get_instruments()
    if not chosen:
        return function

    @functools.wraps(function)
    def instrumented(argument: Envelope | Batch) -> Any:
        with _Handling(argument, chosen):
            return function(argument)

    @functools.wraps(function)
    async def ainstrumented(argument: Envelope | Batch) -> Any:
        with _Handling(argument, chosen):
            return await function(argument)

    return ainstrumented if is_async else instrumented


class _Handling:
    """The contexts of all instruments around one call; none can change its outcome.

    A call with a batch is watched as the handling of each of its messages.
    """

    __slots__ = ("_chosen", "_entered", "_envelopes")

    def __init__(self, argument: Envelope | Batch, chosen: tuple[Instrument, ...]) -> None:
        self._envelopes = (argument,) if isinstance(argument, Envelope) else argument
        self._chosen = chosen
        self._entered: list[tuple[Instrument, AbstractContextManager[Any]]] = []

    def __enter__(self) -> None:
        for envelope, each in product(self._envelopes, self._chosen):
            try:
                context = each.handling(envelope)
                context.__enter__()
            # As with offers: the handler runs without this instrument.
            except Exception as error:
                _report(each, error)
            else:
                self._entered.append((each, context))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each, context in reversed(self._entered):
            try:
                # The return value is ignored: a suppressed failure would be acknowledged.
                context.__exit__(kind, error, trace)
            # The context manager may re-raise the handler's own error.
            except Exception as raised:
                if raised is not error:
                    _report(each, raised)


def _report(instrument: Instrument, error: Exception) -> None:
    log(logging.ERROR, "instrument_failed", error, instrument=type(instrument).__qualname__)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        get_instruments.cache_clear()


setting_changed.connect(_forget, dispatch_uid="delayed_queue.instruments")
