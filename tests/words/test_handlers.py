"""The registry of handlers, and the verdict on their exceptions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import Batch, DelayedQueue, Envelope, Groups
from delayed_queue.codecs import codec_named
from delayed_queue.declaring import handler
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import (
    Handler,
    Registry,
    Reject,
    Retry,
    Snooze,
    Verdict,
    error_text,
    judge,
    registry,
)
from delayed_queue.retries import RetryPolicy

MINUTE = timedelta(minutes=1)


def handle(envelope: Any) -> None:
    """Do nothing."""


async def handle_async(envelope: Any) -> None:
    """Do nothing, without blocking."""


def a_handler(queue: str = "orders", function: Any = handle) -> Handler:
    return Handler(queue, function, codec_named("json"), f"{queue}|json")


class TestRegistry:
    def test_get_iterate_remove(self):
        handlers = Registry()
        first, second = a_handler("b"), a_handler("a")
        handlers.add(first)
        handlers.add(second)
        assert handlers.get("a") is second
        assert list(handlers) == [first, second]
        handlers.remove("b")
        handlers.remove("b")
        assert list(handlers) == [second]

    def test_an_unknown_queue_names_the_known(self):
        handlers = Registry()
        with pytest.raises(HandlerNotFound, match="registered: none"):
            handlers.get("orders")
        handlers.add(a_handler("mails"))
        with pytest.raises(HandlerNotFound, match=r"'orders'; registered: mails.*@handler"):
            handlers.get("orders")

    def test_the_nearest_name_is_asked_for(self):
        handlers = Registry()
        handlers.add(a_handler("orders"))
        with pytest.raises(HandlerNotFound, match=r"registered: orders\. Did you mean 'orders'\?"):
            handlers.get("ordrs")

    def test_a_second_function_is_refused(self):
        handlers = Registry()
        handlers.add(a_handler(function=handle))
        with pytest.raises(InvalidConfiguration, match=r"test_handlers\.handle;.*handle_async"):
            handlers.add(a_handler(function=handle_async))

    def test_a_reloaded_function_replaces(self):
        handlers = Registry()
        handlers.add(a_handler())
        reloaded = a_handler()
        handlers.add(reloaded)
        assert handlers.get("orders") is reloaded


class TestDecorator:
    def test_it_registers_and_returns_the_function(self):
        policy = RetryPolicy.ladder("1m")
        decorated = handler("decorated", retry=policy, codec="text", lease=MINUTE)(handle)
        try:
            assert decorated is handle
            found = registry.get("decorated")
            assert (found.kind, found.retry, found.lease) == ("decorated|text", policy, MINUTE)
            assert found.path == f"{__name__}.handle"
            assert not found.is_async
        finally:
            registry.remove("decorated")

    def test_an_async_function_is_one(self):
        assert a_handler(function=handle_async).is_async

    @pytest.mark.parametrize(
        "wrong",
        [{"retry": "15s"}, {"lease": timedelta(0)}, {"lease": "a minute"}, {"codec": "yaml"}],
    )
    def test_wrong_options(self, wrong: dict[str, Any]):
        with pytest.raises(InvalidConfiguration):
            handler("orders", **wrong)

    @pytest.mark.parametrize("queue", ["", "x" * 200, "a\0"])
    def test_wrong_names(self, queue: str):
        with pytest.raises(InvalidMessage):
            handler(queue)

    @pytest.mark.parametrize("function", [handle, handle_async])
    def test_without_parentheses_it_says_what_to_write(self, function: Any):
        with pytest.raises(
            InvalidConfiguration, match=r'Write @handler\("orders"\).*test_handlers'
        ):
            handler(function)

    @pytest.mark.parametrize(
        "function",
        [lambda: None, lambda first, second: None, lambda *, envelope: None],
        ids=["of none", "of two", "of a keyword"],
    )
    def test_what_cannot_be_called_with_an_envelope_is_refused(self, function: Any):
        with pytest.raises(InvalidConfiguration, match="called with one argument, the envelope"):
            handler("orders")(function)
        assert "orders" not in {each.queue for each in registry if each.function is function}

    @pytest.mark.parametrize(
        "function",
        [lambda envelope, more=1: None, lambda *all_of_them: None, print, dict.fromkeys],
        ids=["with a default", "of any", "print", "written in C"],
    )
    def test_what_can_be_is_not(self, function: Any):
        handler("decorated")(function)
        registry.remove("decorated")

    def test_only_functions(self):
        with pytest.raises(InvalidConfiguration, match="not callable"):
            handler("orders")("not a function")  # type: ignore[type-var]


class TestVerdicts:
    def test_q28_a_retry_beyond_the_policy_is_final(self):
        verdict = judge(Retry(MINUTE, "busy"), 2, RetryPolicy.ladder("15s"))
        assert verdict == Verdict(None, "attempts exhausted: Retry", "busy")

    @pytest.mark.parametrize("delay", [-MINUTE, -60, None, "a minute"])
    def test_a_retry_needs_a_delay(self, delay: Any):
        with pytest.raises(InvalidConfiguration, match="Retry"):
            Retry(delay)

    @pytest.mark.parametrize("delay", [-MINUTE, -60, None, "a minute"])
    def test_a_snooze_needs_a_delay(self, delay: Any):
        with pytest.raises(InvalidConfiguration, match="Snooze"):
            Snooze(delay)

    @pytest.mark.parametrize("reason", [None, 404, ValueError("x")])
    def test_a_reject_needs_a_reason(self, reason: Any):
        with pytest.raises(InvalidConfiguration, match="Reject"):
            Reject(reason)

    def test_signals_say_what_they_are(self):
        assert str(Snooze(MINUTE)) == "snoozed for 0:01:00"
        assert str(Reject("bad")) == "bad"


class TestErrorTexts:
    def test_the_chain_of_causes_is_kept(self):
        cause = KeyError("inner")
        error = ValueError("outer")
        error.__cause__ = cause
        text = error_text(error)
        assert text.index("inner") < text.index("direct cause") < text.index("outer")

    def test_an_error_that_cannot_be_printed(self):
        class Unprintable(Exception):
            def __str__(self) -> str:
                raise ValueError("no")

        assert "Unprintable" in error_text(Unprintable())
        broken = SyntaxError("broken")
        broken.text = 5  # type: ignore[assignment] # no text, which ends the printing
        broken.lineno = 1
        assert "builtins.SyntaxError, which cannot be printed" in error_text(broken)


def test_a_mode_of_claiming_that_does_not_exist_is_refused():
    with pytest.raises(InvalidConfiguration, match="one of fast, strict, not 'slow'"):
        handler("orders", claim="slow")
    with pytest.raises(InvalidConfiguration, match="one of fast, strict"):
        DelayedQueue("orders", claim="slow")


def test_a_transactional_handler_cannot_claim_strictly():
    with pytest.raises(InvalidConfiguration, match="only one such transaction could be open"):
        handler("orders", transactional=True, claim="strict")(lambda envelope: None)


class TestMany:
    """B13: options of handlers that receive batches, refused by name."""

    def refuse(self, text: str, function: Any = handle, **options: Any) -> None:
        with pytest.raises(InvalidConfiguration, match=text):
            handler("many-refused", **options)(function)
        assert "many-refused" not in registry

    def test_registers_with_its_options(self):
        @handler("many", many=True, batch_size=500, linger="200ms", split=False)
        async def store(batch: Batch) -> None:
            """Do nothing."""

        found = registry.get("many")
        registry.remove("many")
        assert (found.many, found.batch_size, found.split) == (True, 500, False)
        assert found.linger == timedelta(milliseconds=200)

    def test_refuses_options_of_batches_without_many(self):
        self.refuse("linger is for .* add many=True", linger="1s")
        self.refuse("split is for .* add many=True", split=False)

    def test_refuses_bad_values(self):
        self.refuse("many must be True or False, not 1", many=1)
        self.refuse("split must be True or False, not None", many=True, split=None)
        self.refuse("batch_size must be at most 10,000", many=True, batch_size=10_001)
        self.refuse("linger", many=True, linger=timedelta(0))
        self.refuse("linger must be at most a tenth", many=True, linger="2s", lease="19s")

    def test_refuses_an_annotation_of_one_message_on_many_and_the_reverse(self):
        def of_one(envelope: Envelope) -> None:
            """Do nothing."""

        def of_many(batch: Batch) -> None:
            """Do nothing."""

        def of_list(envelopes: list[Envelope]) -> None:
            """Do nothing."""

        self.refuse("of_one is annotated to receive Envelope.* receives a Batch", of_one, many=True)
        for each in (of_many, of_list):
            self.refuse("without many=True receives one Envelope", each)
        of_many.__annotations__["batch"] = Batch
        self.refuse("without many=True receives one Envelope", of_many)
        self.refuse("called with one argument, the batch", lambda: None, many=True)

    def test_keeps_the_refusals_of_transactional_handlers(self):
        self.refuse("is async", handle_async, many=True, transactional=True)
        for more in ({"lease": "1m"}, {"timeout": "1m"}):
            self.refuse("no lease and no timeout", many=True, transactional=True, **more)
        self.refuse(
            "limits count leases", many=True, transactional=True, groups=Groups(order="fifo")
        )
