"""J4, J5: the stored job, its due time, and the effect of a taken id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, OfferOutcome
from delayed_queue.exceptions import InvalidJob
from delayed_queue.http.jobs import adding, requests
from delayed_queue.http.jobs.adding import add_jobs, delete_job, find_job
from delayed_queue.http.jobs.catalogue import configure_topic, forget_topics
from delayed_queue.http.jobs.consuming import bury_job, finish_job
from delayed_queue.http.jobs.jobs import Answer, IfExists, JobState
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.models import Topic
from delayed_queue.models import Message
from tests.http.jobs.support import URL, add, found, pop_jobs, popped, server_now

pytestmark = pytest.mark.django_db
CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


def refused(**fields: Any) -> list[str]:
    """Return the paths of the errors."""
    with pytest.raises(InvalidJob) as raised:
        job_from({"jobId": "a", "topic": "orders", **fields})
    return [path for path, _ in raised.value.errors]


@pytest.mark.parametrize("delay", [None, 0, 0.0])
def test_j4_no_delay_is_now(delay: Any) -> None:
    before = server_now()
    added = add(delay=delay)

    assert added.state is JobState.READY
    assert added.run_at is not None
    assert before <= added.run_at <= server_now()


@pytest.mark.parametrize("delay", [0.0015, 1, 3600.5, 3652 * 86400])
def test_j4_a_delay_counts_from_the_clock_of_the_database(delay: float) -> None:
    before = server_now()
    added = add(delay=delay)

    assert added.state is JobState.DELAYED
    # Rounded up to a millisecond: never early.
    wait = timedelta(milliseconds=-(-delay * 1000 // 1))
    assert added.run_at is not None
    assert before + wait <= added.run_at <= server_now() + wait


@pytest.mark.parametrize("hours", [-1, 1])
def test_j4_a_client_whose_clock_is_an_hour_off_delays_no_less_and_no_more(monkeypatch, hours):
    class Skewed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=hours)

    monkeypatch.setattr(requests, "datetime", Skewed)
    monkeypatch.setattr(adding, "datetime", Skewed)
    before = server_now()
    added = add(delay=60)

    wait = timedelta(seconds=60)
    assert added.run_at is not None
    assert before + wait <= added.run_at <= server_now() + wait


@pytest.mark.parametrize(
    "delay",
    [-1, -0.001, float("nan"), float("inf"), True, False, "5 s", [5], 3652 * 86400 + 1, 10**400],
)
def test_j4_other_delays_are_refused(delay: Any) -> None:
    assert refused(delay=delay) == ["delay"]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T12:00:00.0001+02:00", datetime(2030, 1, 31, 10, 0, 0, 1000, tzinfo=UTC)),
        ("1999-12-31T00:00:00Z", datetime(1999, 12, 31, tzinfo=UTC)),
    ],
)
def test_j4_run_at_is_an_instant_with_a_zone(text: str, at: datetime) -> None:
    assert add(runAt=text).run_at == at


@pytest.mark.parametrize(
    "run_at", ["2030-01-31T12:00:00", "soon", "", 5, True, "9999-12-31T23:59:59-23:59",
               "0001-01-01T00:00:00+23:59:x", "0001-01-01T00:00:00+14:00", "2999-01-01T00:00:00Z"],
)  # fmt: skip
def test_j4_other_instants_are_refused(run_at: Any) -> None:
    assert refused(runAt=run_at) == ["runAt"]


def test_j4_delay_and_run_at_exclude_each_other() -> None:
    assert refused(delay=5, runAt="2030-01-31T12:00:00Z") == ["runAt"]


def test_every_field_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(InvalidJob) as raised:
        job_from({"topic": "a b", "delay": -1, "Body": 1, "ttr": 0, "ladder": "soon",
                  "retry": -1, "jitter": 2, "url": "a\nb"})  # fmt: skip
    paths = {path for path, _ in raised.value.errors}
    assert paths == {"jobId", "topic", "delay", "Body", "ttr", "ladder", "retry", "jitter", "url"}
    assert "Did you mean 'body'?" in str(raised.value)


@pytest.mark.parametrize("job_id", ["", "a" * 201, "a/b", ".", "..", "a\x00", "a\n", "\ud800", 7])
def test_ids_that_no_path_can_name_are_refused(job_id: Any) -> None:
    assert refused(jobId=job_id) == ["jobId"]


@pytest.mark.parametrize("body", [float("nan"), {"a": "\ud800"}])
def test_bodies_that_are_no_json_are_refused(body: Any) -> None:
    assert refused(body=body) == ["body"]


@pytest.mark.parametrize("body", [None, 0, "é\x00", [1, {"a": None}], {"b": 1.5, "a": 2**70}])
def test_any_json_is_a_body(body: Any) -> None:
    add(body=body)
    assert popped().body == body


def test_what_a_job_asks_for_travels_in_its_headers() -> None:
    add(url=URL, ladder="15s 3.5s", ttr=30, retry=2, jitter=0.2, delay=1)

    message = Message.objects.get()
    assert message.headers == {
        "url": URL, "ladder": "15s 3.5s", "ttr": 30, "retry": 2, "jitter": 0.2,
    }  # fmt: skip
    assert (found().url, found().retry) == (URL, 2)


def test_a_job_that_asks_for_nothing_has_no_headers() -> None:
    add(retry=0)
    assert Message.objects.get().headers is None


def test_j5_an_id_is_a_job_of_its_topic() -> None:
    assert add("a", "one").outcome is CREATED
    assert add("a", "two").outcome is CREATED
    assert delete_job("one", "a")
    assert find_job("two", "a") is not None


@pytest.mark.parametrize("first", [None, URL])
@pytest.mark.parametrize("second", [None, URL])
def test_j5_an_id_is_taken_whichever_way_the_job_is_delivered(first, second):
    add(url=first, body=1)

    assert add(url=second, body=2).outcome is None
    assert add(url=second, body=2, if_exists="ignore").outcome is IGNORED
    assert bytes(Message.objects.get().payload) == b"1"


@pytest.mark.parametrize("first", [None, URL])
@pytest.mark.parametrize("second", [None, URL])
def test_j5_an_update_replaces_the_job_and_moves_it_if_need_be(first, second):
    add(url=first, body=1)

    assert add(url=second, body=2, delay=60, if_exists="update").outcome is UPDATED
    assert bytes(Message.objects.get().payload) == b"2"
    assert (found().url, found().state) == (second, JobState.DELAYED)


def test_an_update_that_changes_nothing_is_ignored_and_tells_how_the_job_stands() -> None:
    at = "2030-01-31T12:00:00Z"
    add(runAt=at, body=1)

    again = add(runAt=at, body=1, if_exists="update")
    assert (again.outcome, again.state) == (IGNORED, JobState.DELAYED)
    assert again.run_at == datetime(2030, 1, 31, 12, tzinfo=UTC)


def test_an_update_ends_the_lease_and_starts_the_attempts_anew() -> None:
    add(body=1)
    job = popped()
    add(body=2, if_exists="update")

    assert (found().state, found().retry) == (JobState.READY, 0)
    assert bury_job("orders", "a", job.lease_token) == "stale"


def test_a_dead_job_exists_and_an_update_puts_an_active_one_beside_it() -> None:
    add()
    bury_job("orders", "a", popped().lease_token)

    assert add().outcome is None
    assert add(if_exists="ignore").state is JobState.DEAD
    assert add(if_exists="update").outcome is CREATED
    assert found().state is JobState.READY


def test_a_topic_that_changed_or_went_behind_this_process_is_noticed() -> None:
    add("a")
    Topic.objects.update(shards=8)
    assert {add(str(n)).outcome for n in range(20)} == {CREATED}
    assert Message.objects.values("kind").distinct().count() > 4
    Topic.objects.all().delete()
    assert add("b").outcome is CREATED
    assert Topic.objects.get().shards == 1


def test_many_are_added_in_input_order_and_repeated_ids_one_after_the_other() -> None:
    many = [
        job_from({"jobId": str(n % 300), "topic": f"t{n % 2}", "body": n, "retry": n % 3})
        for n in range(700)
    ]
    added = add_jobs(many, if_exists=IfExists.UPDATE)

    assert [(each.topic, each.job_id) for each in added] == [
        (each.topic, each.job_id) for each in many
    ]
    assert [each.outcome for each in added] == [CREATED] * 300 + [UPDATED] * 400
    assert popped("t1").body == 401


def test_of_many_each_is_due_at_its_own_time_and_goes_its_own_way() -> None:
    urls = [None, "https://a.example.com/", "https://b.example.com/"]
    delays = [0, 60, 100_000]
    many = [
        job_from({"jobId": f"{n}", "topic": "orders", "delay": delays[n % 3], "url": urls[n // 3]})
        for n in range(9)
    ]
    added = add_jobs(many)

    due = [each.run_at for each in added if each.run_at is not None]
    assert [(at - due[0]).total_seconds() for at in due] == delays * 3
    rows = Message.objects.values_list("key", "kind").order_by("key")
    kinds = ["orders|json"] * 3 + ["orders|callback"] * 3 + ["orders#1|callback"] * 3
    assert list(rows) == [(f"{n}", kind) for n, kind in enumerate(kinds)]


def test_of_many_those_that_exist_are_told_apart() -> None:
    add("1")
    added = add_jobs([job_from({"jobId": str(n), "topic": "orders"}) for n in range(3)])
    assert [each.outcome for each in added] == [CREATED, None, CREATED]


def test_j7_shards_can_be_added_at_any_time_and_every_job_is_still_found_once() -> None:
    for n in range(30):
        add(str(n))
    configure_topic("orders", shards=7)
    forget_topics()

    assert all(found(str(n)) for n in range(30))
    assert {add(str(n)).outcome for n in range(30)} == {None}
    assert {add(str(n), body=n, if_exists="update").outcome for n in range(30)} == {UPDATED}
    assert sorted(int(each.job_id) for each in pop_jobs("orders", 100)) == list(range(30))
    assert all(delete_job("orders", str(n)) for n in range(30))
    assert not Message.objects.exists()


class TestBesideOffers:
    """A queue's offer takes no job lock, and checks its own kind only."""

    @pytest.fixture(autouse=True)
    def two_of_an_id(self) -> None:
        add("a", url=URL, body="job")
        assert DelayedQueue("orders").offer_or_update("a", "offer") is OfferOutcome.CREATED

    def test_an_offer_beside_a_job_with_a_url_is_another_of_its_id(self) -> None:
        assert sorted(Message.objects.values_list("kind", flat=True)) == [
            "orders|callback", "orders|json"
        ]  # fmt: skip
        assert found("a").url is None  # the newer one

    def test_a_deletion_takes_both(self) -> None:
        assert delete_job("orders", "a")
        assert find_job("orders", "a") is None

    @pytest.mark.parametrize("url", [None, URL])
    def test_an_update_leaves_one(self, url: str | None) -> None:
        assert add("a", url=url, body="new", if_exists="update").outcome is OfferOutcome.UPDATED
        assert Message.objects.get().payload == b'"new"'
        assert found("a").url == url

    def test_each_is_finished_for_itself(self) -> None:
        assert finish_job("orders", "a", popped().lease_token) is Answer.DONE
        assert found("a").url == URL

    def test_no_more_can_be_added(self) -> None:
        assert add("a").outcome is None
