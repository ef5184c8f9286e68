"""A topic beside a simple model of it, through random histories of a few jobs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from delayed_queue.http.jobs.adding import delete_job, find_job
from delayed_queue.http.jobs.catalogue import configure_topic, forget_topics, topic_stats
from delayed_queue.http.jobs.consuming import bury_job, finish_job, release_job, touch_job
from delayed_queue.http.jobs.dead import dead_jobs, kick_job, kick_topic, replay
from delayed_queue.http.jobs.jobs import Answer, PoppedJob
from delayed_queue.models import Message
from tests.http.jobs.support import URL, add, let_pass, pop_jobs

IDS: Final = ("a", "é")  # few, so that they collide
RETRY_SECONDS: Final = 60  # the only step of the ladder
TTR: Final = 30
numbers: Final = itertools.count()

ids = st.sampled_from(IDS)
bodies = st.integers(0, 1)


@dataclass
class Active:
    """A job of the model; ``due`` in seconds from now, all multiples of ten."""

    body: int
    due: int
    url: str | None
    retry: int
    attempts: int = 0
    token: str | None = None

    @property
    def state(self) -> str:
        if self.due <= 0:
            return "ready"
        return "delayed" if self.token is None else "reserved"

    @property
    def failures(self) -> int:
        return self.retry + self.attempts - (1 if self.state == "reserved" else 0)


@dataclass
class Dead:
    """A dead letter of the model."""

    job_id: str
    body: int
    url: str | None
    retry: int
    failures: int


class Topic(RuleBasedStateMachine):
    """Apply the same call to the topic and the model; answers and visible state are equal."""

    held = Bundle("held")  # popped jobs, with live or expired leases

    def __init__(self) -> None:
        super().__init__()
        self.name = f"machine-{next(numbers)}"
        self.shards = 1
        self.active: dict[str, Active] = {}
        self.dead: list[Dead] = []
        forget_topics()

    @rule(
        job_id=ids, body=bodies, delay=st.sampled_from([0, 0, 100]),
        url=st.sampled_from([None, None, URL]), retry=st.sampled_from([0, 0, 1]),
        if_exists=st.sampled_from(["fail", "ignore", "update"]),
    )  # fmt: skip
    def add(
        self, job_id: str, body: int, delay: int, url: str | None, retry: int, if_exists: str
    ) -> None:
        exists = job_id in self.active or self._letter(job_id) is not None
        is_update = if_exists == "update" and job_id in self.active
        outcome = add(
            job_id, self.name, body=body, delay=delay, url=url, retry=retry, ttr=TTR,
            ladder=f"{RETRY_SECONDS}s", if_exists=if_exists,
        ).outcome  # fmt: skip
        if exists and if_exists != "update":
            assert outcome == (None if if_exists == "fail" else "ignored")
            return
        assert outcome == ("updated" if is_update else "created")
        self.active[job_id] = Active(body, delay, url, retry)

    @rule(target=held, count=st.integers(1, 3))
    def pop(self, count: int) -> Any:
        jobs = pop_jobs(self.name, count)
        due = {name for name, job in self.active.items() if job.state == "ready" and not job.url}
        for name in sorted(due):
            job = self.active[name]
            if job.attempts and job.retry + job.attempts >= 2:
                # The lease of the last attempt expired. The pop may have stopped before it, at its
                # limit. A job that it found is a dead letter.
                found = find_job(self.name, name)
                assert found is not None
                if found.state == "dead":
                    job.attempts += 1
                    self._bury(name)
                due.discard(name)
        assert {each.job_id for each in jobs} <= due
        assert len(jobs) == min(count, len(due))
        for each in jobs:
            job = self.active[each.job_id]
            job.attempts, job.due, job.token = job.attempts + 1, TTR, each.lease_token
            assert (each.body, each.attempt) == (job.body, job.retry + job.attempts)
        return multiple(*jobs)

    def _holds(self, job: PoppedJob) -> Answer:
        """Return the answer to a call with the lease of that job."""
        active = self.active.get(job.job_id)
        if active is not None and active.token == job.lease_token:
            return Answer.DONE
        is_there = active is not None or self._letter(job.job_id) is not None
        return Answer.STALE if is_there else Answer.MISSING

    @rule(job=held)
    def finish(self, job: PoppedJob) -> None:
        expected = self._holds(job)
        assert finish_job(self.name, job.job_id, job.lease_token) is expected
        if expected is Answer.DONE:
            del self.active[job.job_id]

    @rule(job=held, delay=st.sampled_from([None, 0]))
    def release(self, job: PoppedJob, delay: int | None) -> None:
        expected = self._holds(job)
        wait = None if delay is None else timedelta(seconds=delay)
        assert release_job(self.name, job.job_id, job.lease_token, delay=wait) is expected
        if expected is not Answer.DONE:
            return
        active = self.active[job.job_id]
        failures = active.retry + active.attempts
        if failures > 1:
            self._bury(job.job_id)
        else:
            active.token = None
            active.due = RETRY_SECONDS if delay is None else delay

    @rule(job=held)
    def touch(self, job: PoppedJob) -> None:
        expected = self._holds(job)
        assert touch_job(self.name, job.job_id, job.lease_token) is expected
        if expected is Answer.DONE:
            self.active[job.job_id].due = TTR

    @rule(job=held)
    def bury(self, job: PoppedJob) -> None:
        expected = self._holds(job)
        assert bury_job(self.name, job.job_id, job.lease_token) is expected
        if expected is Answer.DONE:
            self._bury(job.job_id)

    @rule(job_id=ids)
    def delete(self, job_id: str) -> None:
        was_there = job_id in self.active or self._letter(job_id) is not None
        assert delete_job(self.name, job_id) is was_there
        self.active.pop(job_id, None)
        self.dead = [each for each in self.dead if each.job_id != job_id]

    @rule(job_id=ids)
    def kick(self, job_id: str) -> None:
        letter = self._letter(job_id)
        if letter is None:
            expected = 0 if job_id in self.active else None
        else:
            expected = self._revive(letter)
        assert kick_job(self.name, job_id) == expected

    @rule()
    def kick_all(self) -> None:
        newest = [each for name in IDS if (each := self._letter(name)) is not None]
        assert kick_topic(self.name) == sum(self._revive(each) for each in newest)

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        letters = dead_jobs(self.name)
        if not letters:
            return
        position = data.draw(st.integers(0, len(letters) - 1))
        went = self._revive(self.dead[position])
        assert replay(letters[position].id) is (Answer.DONE if went else Answer.STALE)

    @rule(seconds=st.sampled_from([30, 120]))
    def wait(self, seconds: int) -> None:
        let_pass(timedelta(seconds=seconds))
        for each in self.active.values():
            each.due -= seconds

    @rule()
    def grow(self) -> None:
        self.shards = min(self.shards * 2, 8)
        configure_topic(self.name, shards=self.shards)

    def _letter(self, job_id: str) -> Dead | None:
        return next((each for each in reversed(self.dead) if each.job_id == job_id), None)

    def _bury(self, job_id: str) -> None:
        job = self.active.pop(job_id)
        failures = job.retry + job.attempts
        self.dead.append(Dead(job_id, job.body, job.url, job.retry, failures))

    def _revive(self, letter: Dead) -> int:
        if letter.job_id in self.active:
            return 0
        self.dead.remove(letter)
        self.active[letter.job_id] = Active(letter.body, 0, letter.url, letter.retry)
        return 1

    @invariant()
    def jobs_stand_as_in_the_model(self) -> None:
        for job_id in IDS:
            found, active, letter = (
                find_job(self.name, job_id), self.active.get(job_id), self._letter(job_id)
            )  # fmt: skip
            if found is None:
                assert active is None
                assert letter is None
            elif active is not None:
                seen = (found.state, found.retry, found.url)
                assert seen == (active.state, active.failures, active.url)
            else:
                assert letter is not None
                assert (found.state, found.retry) == ("dead", letter.failures)

    @invariant()
    def there_is_nothing_else(self) -> None:
        letters = [(each.job_id, each.body, each.retry) for each in dead_jobs(self.name)]
        assert letters == [(each.job_id, each.body, each.failures) for each in self.dead]
        assert Message.objects.filter(kind__startswith=self.name).count() >= len(self.active)
        stats = topic_stats(self.name)
        counts = (stats.delayed, stats.ready, stats.reserved, stats.dead)
        states = [each.state for each in self.active.values()]
        expected = [states.count("delayed"), states.count("ready"), states.count("reserved")]
        assert list(counts) == [*expected, len(self.dead)]


@pytest.mark.django_db
def test_a_topic_is_as_its_model() -> None:
    run_state_machine_as_test(
        Topic,
        settings=settings(
            # Each is forty steps in a database.
            max_examples=settings().max_examples // 5,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
