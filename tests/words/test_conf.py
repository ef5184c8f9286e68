"""Settings, and the system checks of their errors."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.checks import ERROR

from delayed_queue import DelayedQueue
from delayed_queue.checks import check_instruments, check_settings
from delayed_queue.conf import QueueSettings, find_problems, get_settings, section
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.conf import ApiSettings, CallbackSettings
from delayed_queue.instruments import get_instruments
from delayed_queue.retries import Backoff, RetryPolicy
from delayed_queue.spark.settings import SparkSettings
from tests.support.instruments import Recorder

RIGHT: dict[str, list[Any]] = {
    "LEASE_DURATION": [timedelta(milliseconds=1), timedelta(days=3650)],
    "POLL_INTERVAL": [timedelta(milliseconds=1), timedelta(days=1)],
    "RETRY_POLICY": [RetryPolicy.never(), RetryPolicy.ladder("1m")],
    "BACKOFF": [Backoff(retries=0)],
    "NOTIFY": [True, False],
    "PREPARE": [True, False, None],
    "CONCURRENCY": [1, 1000],
    "ASYNC_CONCURRENCY": [1, 10_000],
    "BATCH_SIZE": [1, 10_000],
    "SHUTDOWN_TIMEOUT": [timedelta(0), timedelta(hours=1)],
    "WATCHDOG": [timedelta(seconds=10), timedelta(hours=1)],
    "QUEUE_LATE": [timedelta(0), timedelta(hours=1)],
    "HANDLER_SLOW": [timedelta(seconds=1), timedelta(days=1), None],
    "CRON": [(), []],
    "DEAD_LETTER_RETENTION": [timedelta(hours=1), timedelta(days=3650), None],
    "SAMPLE_RETENTION": [timedelta(days=1), timedelta(days=30), None],
    "LOG_ERRORS": [True, False, None],
    "INSTRUMENTS": [(), ["tests.support.instruments.Recorder"], [Recorder], (Recorder(),)],
    "API": [ApiSettings(), ApiSettings(PUBLIC=True, RATE=0.5)],
    "CALLBACKS": [CallbackSettings(), CallbackSettings(ALLOWED_PORTS=[8080])],
    "SPARK": [{}, {"MASTER": "local[2]", "CONF": {"spark.ui.enabled": "false"}}, SparkSettings()],
}
SECTIONS: dict[str, Any] = {
    "API": ApiSettings,
    "CALLBACKS": CallbackSettings,
    "SPARK": SparkSettings,
}
WRONG: dict[str, list[Any]] = {
    "LEASE_DURATION": [timedelta(0), timedelta(days=3651), "5 min", None],
    "POLL_INTERVAL": [timedelta(0), timedelta(days=2), -3],
    "RETRY_POLICY": ["15s 3m", None, RetryPolicy],
    "BACKOFF": [5, None, {"retries": 5}],
    "NOTIFY": [None, 1, "yes"],
    "PREPARE": [0, "no"],
    "CONCURRENCY": [0, 1001, True, 8.0, "8"],
    "ASYNC_CONCURRENCY": [0, 10_001, True, 100.0],
    "BATCH_SIZE": [0, 10_001, None],
    "SHUTDOWN_TIMEOUT": [timedelta(seconds=-1), "soon"],
    "WATCHDOG": [timedelta(seconds=9.999), timedelta(0), 9, None],
    "QUEUE_LATE": [timedelta(seconds=-1), "60 s", None],
    "HANDLER_SLOW": [timedelta(0), "300 s"],
    "CRON": ["* * * * *", 5, [5], [{"no": "entry"}]],
    "DEAD_LETTER_RETENTION": [timedelta(minutes=59), 30, "30 d"],
    "SAMPLE_RETENTION": [timedelta(hours=23), 8, "8x"],
    "LOG_ERRORS": ["yes", 1],
    "INSTRUMENTS": [
        "tests.support.instruments.Recorder",
        None,
        ["Recorder"],
        ["a. b"],
        [5],
        [object],
    ],
    "API": [
        None,
        [],
        {"PUBLIK": True},
        {"PUBLIC": 1},
        {"RATE": 0},
        {"RATE": True},
        {"DATABASE": ""},
        {"THREADS": 0},
        {"BODY_BYTES": 10},
        {"DEPTH": 101},
        {"DEPTH": True},
        {"TOKEN_CACHE": "5 s"},
        {"POP_TIMEOUT": timedelta(hours=1)},
        ApiSettings(WAITERS=0),
    ],
    "CALLBACKS": [None, [], {"ALLOWED_PORT": [8080]}, CallbackSettings(ALLOWED_PORTS=(0,))],
    "SPARK": [
        None,
        [],
        {"MASTR": "yarn"},
        {"MASTER": "moon"},
        {"MAX_CONNECTIONS": None},
        {"CONF": {"a": 1}},
    ],
}


def cases(values: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(key, value) for key, each in values.items() for value in each]


def test_the_tables_know_every_setting():
    names = {field.name for field in fields(QueueSettings)}
    assert set(RIGHT) == set(WRONG) == names | SECTIONS.keys()


@pytest.mark.parametrize(("key", "value"), cases(RIGHT))
def test_right_values(settings: LazySettings, key: str, value: Any):
    settings.DELAYED_QUEUE = {key: value}
    assert check_settings() == []
    if key in SECTIONS:
        assert section(key) == (SparkSettings(**value) if isinstance(value, dict) else value)
    else:
        assert getattr(get_settings(), key) == value


@pytest.mark.parametrize(("key", "value"), cases(WRONG))
def test_wrong_values(settings: LazySettings, key: str, value: Any):
    settings.DELAYED_QUEUE = {key: value}
    [message] = check_settings()
    assert (message.id, message.level) == ("delayed_queue.E001", ERROR)
    assert f"DELAYED_QUEUE['{key}']" in message.msg
    assert message.hint
    with pytest.raises(InvalidConfiguration, match=key):
        get_settings()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("LEASE_DURATIONS", "LEASE_DURATION"),
        ("lease_duration", "LEASE_DURATION"),
        ("POL_INTERVAL", "POLL_INTERVAL"),
        ("CONCURENCY", "CONCURRENCY"),
    ],
)
def test_an_unknown_key_says_what_was_meant(settings: LazySettings, key: str, meant: str):
    settings.DELAYED_QUEUE = {key: 1}
    [message] = check_settings()
    assert repr(key) in message.msg
    assert message.hint == f"Did you mean {meant!r}?"


@pytest.mark.parametrize("key", ["XYZ", 7, None])
def test_a_key_like_no_other_lists_those_there_are(settings: LazySettings, key: Any):
    settings.DELAYED_QUEUE = {key: 1}
    [message] = check_settings()
    assert str(message.hint).startswith("Known keys: API, ASYNC_CONCURRENCY, BACKOFF, ")


@pytest.mark.parametrize("configured", [None, [], "x", 3])
def test_the_setting_is_a_dict(settings: LazySettings, configured: Any):
    settings.DELAYED_QUEUE = configured
    [message] = check_settings()
    assert "must be a dict" in message.msg


def test_all_problems_are_said_at_once(settings: LazySettings):
    settings.DELAYED_QUEUE = {"CONCURRENCY": 0, "NOTIFI": True, "BATCH_SIZE": 0}
    assert len(check_settings()) == 3
    with pytest.raises(InvalidConfiguration) as raised:
        get_settings()
    assert all(name in str(raised.value) for name in ("CONCURRENCY", "NOTIFI", "BATCH_SIZE"))


def test_the_defaults_are_right(settings: LazySettings):
    defaults = QueueSettings()
    assert (
        find_problems({field.name: getattr(defaults, field.name) for field in fields(defaults)})
        == []
    )
    settings.DELAYED_QUEUE = {}
    assert get_settings() == defaults
    assert timedelta(minutes=5) == get_settings().LEASE_DURATION
    assert timedelta(seconds=3) == get_settings().POLL_INTERVAL
    del settings.DELAYED_QUEUE
    assert get_settings() == defaults


def test_a_change_is_noticed(settings: LazySettings):
    settings.DELAYED_QUEUE = {"LEASE_DURATION": timedelta(seconds=1)}
    assert DelayedQueue("orders").lease_duration == timedelta(seconds=1)
    settings.DELAYED_QUEUE = {"LEASE_DURATION": timedelta(seconds=2)}
    assert DelayedQueue("orders").lease_duration == timedelta(seconds=2)
    assert DelayedQueue("orders", lease_duration=timedelta(seconds=3)).lease_duration == (
        timedelta(seconds=3)
    )


class TestInstruments:
    def test_those_that_load_pass(self, settings: LazySettings):
        settings.DELAYED_QUEUE = {"INSTRUMENTS": ["tests.support.instruments.Recorder", Recorder()]}
        assert check_instruments() == []

    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("tests.instrumens.Recorder", "ModuleNotFoundError"),
            ("tests.support.instruments.Recoder", "ImportError.*Recoder"),
            ("tests.support.instruments.Unfinished", "ValueError: not ready"),
            ("tests.support.instruments.Incomplete", "no offering and handling"),
        ],
    )
    def test_those_that_do_not_are_said(self, settings: LazySettings, path: str, said: str):
        settings.DELAYED_QUEUE = {"INSTRUMENTS": [Recorder, path]}
        assert check_settings() == []
        [message] = check_instruments()
        assert (message.id, message.level) == ("delayed_queue.E003", ERROR)
        assert re.search(f"{path}.*{said}", message.msg)
        with pytest.raises(InvalidConfiguration, match=said):
            get_instruments()

    def test_wrong_settings_are_left_to_their_own_check(self, settings: LazySettings):
        settings.DELAYED_QUEUE = {"INSTRUMENTS": 5}
        assert check_instruments() == []

    def test_they_are_made_once_and_anew_after_a_change(self, settings: LazySettings):
        settings.DELAYED_QUEUE = {"INSTRUMENTS": ["tests.support.instruments.Recorder"]}
        [first] = get_instruments()
        assert get_instruments() == (first,)
        settings.DELAYED_QUEUE = {"INSTRUMENTS": [Recorder]}
        [second] = get_instruments()
        assert second is not first
