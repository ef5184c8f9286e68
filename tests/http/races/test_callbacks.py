"""Hosts, slots, endpoints and attempts, under many workers at once (J12)."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from delayed_queue.http.callbacks.endpoints import Endpoints, place_of
from delayed_queue.http.models import CallbackAttempt, Endpoint, Host, Slot
from delayed_queue.http.store.callbacks import END_PROBE, LOCK_SLOTS, PROBE_HOST, TAKE_SLOT
from delayed_queue.rates import Event
from tests.support.concurrency import calling, together, wait_until_blocked

NOW: Final = 1_800_000_000_000
HOST: Final = "example.com:443"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def half_open() -> None:
    Host.objects.open(HOST, "timeout", pause=1000, now=NOW)


def probing(by: str, now: int = NOW + 1000) -> bool:
    return Host.objects.probe(HOST, by, timeout=5000, now=now)


def ending(by: str, event: Event, now: int = NOW + 2000) -> bool:
    return Host.objects.end_probe(HOST, by, event, pause=1000, longest=100_000, now=now)


class TestHosts:
    def test_j12_of_twenty_workers_one_probes(self, half_open: None) -> None:
        answers = together([partial(probing, str(n)) for n in range(20)])
        assert sorted(answers) == [False] * 19 + [True]

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_j12_who_waits_for_the_probes_row_believes_what_it_leaves(
        self, half_open, other, admin, end
    ):
        params = {"host": HOST, "by": "first", "timeout": 5000, "now": NOW + 1000}
        other.execute("BEGIN")
        assert other.execute(PROBE_HOST, params).fetchall()
        with calling(partial(probing, "second")) as second:
            wait_until_blocked(admin, second)
            other.execute(end)
            assert second.answer() is (end == "ROLLBACK")

    def test_j12_a_probe_that_died_is_given_to_another(self, half_open: None) -> None:
        assert probing("dead")
        assert not probing("next", NOW + 5999)
        assert probing("next", NOW + 6000)
        assert not ending("dead", Event.SUCCEED, NOW + 6001), "it came too late"
        row = Host.objects.read(HOST, now=NOW + 6001)
        assert row is not None
        assert row.open_for <= 0

    def test_j12_while_open_nobody_probes(self, half_open: None) -> None:
        assert not probing("early", NOW + 999)

    def test_j12_a_success_closes_and_failures_double_the_pause(self, half_open: None) -> None:
        now = NOW + 1000
        for pause in (2000, 4000, 8000):
            assert probing("me", now)
            assert ending("me", Event.FAIL, now)
            row = Host.objects.read(HOST, now=now)
            assert row is not None
            assert row.open_for == pause
            now += pause
        assert probing("me", now)
        assert ending("me", Event.SUCCEED, now)
        assert Host.objects.read(HOST, now=now) is None

    def test_j12_a_probe_that_was_dropped_is_anybodys(self, half_open: None) -> None:
        assert probing("me")
        assert ending("me", Event.DROP)
        assert probing("you", NOW + 2001)

    def test_j12_of_many_that_see_it_fail_one_opens(self) -> None:
        answers = together([partial(Host.objects.open, HOST, "x", pause=60_000)] * 10)
        assert sorted(answers) == [False] * 9 + [True]
        assert Host.objects.get().openings == 1

    def test_j12_results_on_their_way_do_not_prolong_it(self, half_open: None) -> None:
        assert not Host.objects.open(HOST, "late", pause=99_000, now=NOW + 500)
        row = Host.objects.read(HOST, now=NOW + 500)
        assert row is not None
        assert row.open_for == 500

    def test_a_probe_that_was_under_way_when_an_operator_closed_is_not_believed(self, half_open):
        assert probing("me")
        assert Host.objects.close(HOST)
        assert not ending("me", Event.FAIL)
        assert Host.objects.read(HOST, now=NOW + 2000) is None
        assert not Host.objects.close(HOST)

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_an_operator_who_closes_waits_for_the_end_of_a_probe(
        self, half_open, other, admin, end
    ):
        """In each order of the outcomes, the host is closed."""
        probing("me")
        params = {
            "host": HOST, "by": "me", "event": "FAIL", "pause": 1000, "longest": 9000,
            "now": NOW + 2000,
        }  # fmt: skip
        other.execute("BEGIN")
        other.execute(END_PROBE, params)
        with calling(partial(Host.objects.close, HOST)) as closing:
            wait_until_blocked(admin, closing)
            other.execute(end)
            assert closing.answer()
        assert Host.objects.get().open_until is None


@pytest.fixture
def endpoint() -> Endpoint:
    origin = "https://example.com"
    return Endpoint.objects.create(
        origin=origin, prefix=origin, secret="x", created_at=timezone.now()
    )


def taking(endpoint: Endpoint, holder: str, concurrency: int, now: int | None = None) -> bool:
    return Endpoint.objects.take_slot(endpoint.id, holder, concurrency, timeout=1000, now=now)


class TestSlots:
    def test_j12_twenty_workers_hold_no_more_than_there_are(self, endpoint: Endpoint) -> None:
        answers = together([partial(taking, endpoint, str(n), 5) for n in range(20)])
        assert sum(answers) == Slot.objects.count() == 5

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_j12_a_worker_waits_for_the_one_before(self, endpoint, other, admin, end):
        params = {"id": endpoint.id, "holder": "first", "concurrency": 1, "timeout": 60_000}
        other.execute("BEGIN")
        other.execute(LOCK_SLOTS, {"id": endpoint.id})
        assert other.execute(TAKE_SLOT, {**params, "now": None}).fetchall()
        with calling(partial(taking, endpoint, "second", 1)) as second:
            wait_until_blocked(admin, second)
            other.execute(end)
            assert second.answer() is (end == "ROLLBACK")

    def test_j12_the_slot_of_a_worker_that_died_is_free_after_a_while(self, endpoint):
        assert taking(endpoint, "dead", 1, NOW)
        assert not taking(endpoint, "alive", 1, NOW + 999)
        assert taking(endpoint, "alive", 1, NOW + 1000)
        assert list(Slot.objects.values_list("holder", flat=True)) == ["alive"]


class TestEndpoints:
    def test_of_many_workers_that_meet_an_origin_one_makes_it(self) -> None:
        origin = "https://example.com"
        place = place_of(f"{origin}/hooks")
        together([partial(async_to_sync(Endpoints("default").of), place)] * 10)
        assert Endpoint.objects.get().prefix == origin

    def test_of_many_that_are_told_it_is_gone_one_disables(self, endpoint: Endpoint) -> None:
        answers = together([partial(Endpoint.objects.disable, endpoint.id, "gone")] * 10)
        assert sorted(answers) == [False] * 9 + [True]


class TestAttempts:
    def test_prunes_pass_over_what_another_holds(self, other, django_db_setup):
        for n in range(3):
            CallbackAttempt.objects.create(
                key=str(n), topic="t", kind="t|callback", webhook_id="m", attempt=1,
                started_at=n + 1, duration=1,
            )  # fmt: skip
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM delayed_queue_callback_attempt WHERE key = '1' FOR UPDATE")
        assert CallbackAttempt.objects.prune(0, 10, now=NOW) == 2
        other.execute("COMMIT")
        assert CallbackAttempt.objects.prune(0, 10, now=NOW) == 1
