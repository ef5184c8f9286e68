"""Every public call with its arguments, and the statement whose answer the proxy drops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import connection

from delayed_queue import DelayedQueue, Envelope, Groups, ScheduledMessage
from delayed_queue.cron.keeper import CronEntry, CronKeeper
from delayed_queue.cron.rules import CronMessage
from delayed_queue.http import tokens
from delayed_queue.http.callbacks import operating
from delayed_queue.http.jobs import adding, batches, catalogue, consuming, dead
from delayed_queue.http.jobs.jobs import JobState, NewJob
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import DeadLetter
from delayed_queue.notifications import intake, managing
from delayed_queue.notifications.models import Status
from delayed_queue.notifications.recipients import hash_of
from delayed_queue.queue import bulk
from delayed_queue.queue.batches import MessageBatch
from delayed_queue.queue.bulk import BulkPlan
from delayed_queue.spark import dsn_from_django
from delayed_queue.spark.source import ledger
from delayed_queue.tasks._api import task_backends
from tests.notifications.factories import enqueue
from tests.notifications.requests import email
from tests.support.aiming import COMMIT
from tests.support.losing import OFFER, REDRIVE
from tests.support.operations import PAST

# Any statement of the package; and the one that settles, if others come before it.
ANY: Final = "delayed_queue"
OPENING: Final = "INSERT INTO delayed_queue_batch"
LEASED: Final = r"(UPDATE|DELETE FROM) delayed_queue\s"
HOUR: Final = timedelta(hours=1)


@dataclass
class Ready:
    """The queue, job, token and so on that one call needs, under its own tag."""

    tag: str
    queue: DelayedQueue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = DelayedQueue(f"every-{self.tag}")

    def offered(self) -> DelayedQueue:
        self.queue.offer_or_update("key", 1, PAST)
        return self.queue

    def leased(self) -> Envelope:
        envelope = self.offered().try_poll()
        assert envelope is not None
        return envelope

    def letter(self) -> int:
        assert self.leased().reject("no")
        return DeadLetter.objects.get(kind=self.queue.kind).id

    def run(self) -> int:
        self.letter()
        return BulkPlan("redrive", self.queue.kind).start()

    def batch(self) -> MessageBatch:
        return self.queue.batch(ScheduledMessage("then", 1))

    def opened(self) -> MessageBatch:
        batch = self.batch()
        assert batch.id
        return batch

    def job_batch(self) -> int:
        return batches.open_batch(self.new_job())

    def job(self) -> str:
        adding.add_job(self.new_job())
        return self.tag

    def new_job(self) -> NewJob:
        return job_from({"jobId": "job", "topic": self.tag, "body": 1})

    def reserved(self) -> tuple[str, str, str]:
        (job,) = consuming.Pop(self.job()).claim()
        return self.tag, "job", job.lease_token

    def dead_job(self) -> int:
        consuming.bury_job(*self.reserved())
        return dead.dead_jobs(self.tag)[0].id

    def topic(self) -> str:
        return catalogue.create_topic(self.tag).name

    def token(self) -> str:
        return tokens.create_token(self.tag, verbs=["add"], topics=["*"])

    def endpoint(self) -> Any:
        operating.register_endpoint(f"https://example.com/{self.tag}")
        return operating.endpoint_of(f"https://example.com/{self.tag}")

    def suppressed(self) -> tuple[str, str]:
        managing.suppress("email", f"{self.tag}@example.com")
        return "email", f"{self.tag}@example.com"

    def failed(self) -> Any:
        return enqueue(status=Status.FAILED, ended_at=datetime.now(UTC)).id


def backend() -> Any:
    return task_backends["default"]


def work() -> Any:
    from tests.tasks import work

    return work


def consumed(queue: DelayedQueue) -> Any:
    with queue.consume() as envelope:
        return envelope


def installed(ready: Ready) -> Any:
    message = CronMessage(1, datetime.now(UTC) + HOUR)
    return partial(ready.queue.cron.install_tick, "hash", "tick", [message])


def keeper(ready: Ready) -> CronKeeper:
    return CronKeeper(entries=[CronEntry(ready.queue.name, "tick", "@hourly")])


def kept(keeper: CronKeeper) -> Any:
    found = keeper.check()
    assert [each.error for each in found] == [""]
    return found


def kept_before(ready: Ready) -> CronKeeper:
    kept(keeper(ready))
    return keeper(ready)


Case = tuple[str, Callable[[Ready], Any]]
ON_QUEUE: Final[dict[str, Case]] = {
    "read": (ANY, lambda it: partial(it.offered().read, "key")),
    "contains_message": (ANY, lambda it: partial(it.offered().contains_message, "key")),
    "stats": (ANY, lambda it: it.offered().stats),
    "is_paused": (ANY, lambda it: it.queue.is_paused),
    "seconds_to_next_look": (ANY, lambda it: it.queue.seconds_to_next_look),
    "try_poll": (ANY, lambda it: it.offered().try_poll),
    "try_poll_many": (ANY, lambda it: partial(it.offered().try_poll_many, 2)),
    "poll": (ANY, lambda it: partial(it.offered().poll, timeout=0)),
    "pause": (ANY, lambda it: it.queue.pause),
    "resume": (ANY, lambda it: it.queue.resume),
    "extend": (ANY, lambda it: it.leased().extend),
    "prune_dead_letters": (ANY, lambda it: partial(it.queue.prune_dead_letters, HOUR)),
    "offer_or_update": (OFFER, lambda it: partial(it.queue.offer_or_update, "key", 1)),
    "offer_if_not_exists": (OFFER, lambda it: partial(it.queue.offer_if_not_exists, "key", 1)),
    "offer_batch": (OFFER, lambda it: partial(it.queue.offer_batch, [ScheduledMessage("k", 1)])),
    "acknowledge": (ANY, lambda it: it.leased().acknowledge),
    "acknowledge_batch": (ANY, lambda it: it.offered().try_poll_many(1).acknowledge),
    "release": (ANY, lambda it: it.leased().release),
    "reject": (ANY, lambda it: partial(it.leased().reject, "no")),
    "fail": (ANY, lambda it: partial(it.queue.fail, it.leased(), ValueError("no"))),
    "drop_message": (ANY, lambda it: partial(it.offered().drop_message, "key")),
    "drop_all_messages": (
        ANY,
        lambda it: partial(it.offered().drop_all_messages, "Yes, please, I know what I'm doing!"),
    ),
    "redrive": (REDRIVE, lambda it: partial(it.queue.redrive, [it.letter()])),
    "redrive_all": (REDRIVE, lambda it: it.letter() and it.queue.redrive_all),
    "consume": (ANY, lambda it: partial(consumed, it.offered())),
}
ON_BATCHES: Final[dict[str, Case]] = {
    "MessageBatch.joining": (OPENING, lambda it: it.batch().joining),
    "MessageBatch.close": (ANY, lambda it: it.opened().close),
    "MessageBatch.cancel": (ANY, lambda it: it.opened().cancel),
    "MessageBatch.offer_or_update": (
        COMMIT, lambda it: partial(it.opened().offer_or_update, "key", 1),
    ),
    "MessageBatch.offer_if_not_exists": (
        COMMIT, lambda it: partial(it.opened().offer_if_not_exists, "key", 1),
    ),
    "MessageBatch.offer_batch": (
        COMMIT, lambda it: partial(it.opened().offer_batch, [ScheduledMessage("key", 1)]),
    ),
    "batches.open_batch": (
        OPENING, lambda it: it.topic() and partial(batches.open_batch, it.new_job()),
    ),
    "batches.topic_of_batch": (ANY, lambda it: partial(batches.topic_of_batch, it.job_batch())),
    "batches.close_batch": (ANY, lambda it: partial(batches.close_batch, it.job_batch())),
}  # fmt: skip
ON_GROUPS: Final[dict[str, Case]] = {
    "held": (ANY, lambda it: it.queue.groups.held),
    "set": (COMMIT, lambda it: partial(it.queue.groups.set, Groups(rate="1/s"))),
    "clear": (COMMIT, lambda it: it.queue.groups.clear),
    "declare": (COMMIT, lambda it: partial(it.queue.groups.declare, Groups(concurrency=1))),
    "limit": (COMMIT, lambda it: partial(it.queue.groups.limit, "a", rate="1/s")),
    "pause": (COMMIT, lambda it: partial(it.queue.groups.pause, "a")),
    "resume": (COMMIT, lambda it: partial(it.queue.groups.resume, "a")),
}
ON_RUNS: Final[dict[str, Case]] = {
    "BulkPlan.preview": (ANY, lambda it: BulkPlan("redrive", it.queue.kind).preview),
    "BulkPlan.letters": (ANY, lambda it: lambda: list(BulkPlan("export", it.queue.kind).letters())),
    "BulkPlan.start": (
        "INSERT INTO delayed_queue_bulk_run",
        lambda it: it.letter() and BulkPlan("redrive", it.queue.kind).start,
    ),
    "bulk.switch_run": (ANY, lambda it: partial(bulk.switch_run, it.run(), "pause")),
}
ON_CRON: Final[dict[str, Case]] = {
    "CronService.install_tick": (COMMIT, installed),
    "CronService.uninstall_tick": (
        COMMIT, lambda it: partial(it.queue.cron.uninstall_tick, "hash", "tick"),
    ),
    "CronKeeper.check": (COMMIT, lambda it: partial(kept, keeper(it))),
    "CronKeeper.uninstall": (COMMIT, lambda it: kept_before(it).uninstall),
    "CronKeeper.listed": (ANY, lambda it: lambda: list(kept_before(it).listed())),
}  # fmt: skip
ON_SPARK: Final[dict[str, Case]] = {
    "ledger.counts": (
        ANY, lambda it: partial(ledger.counts, it.tag, dsn_from_django(connection.settings_dict)),
    ),
}  # fmt: skip
ON_TASKS: Final[dict[str, Case]] = {
    "enqueue": (COMMIT, lambda it: partial(work().once.enqueue, it.tag)),
    "enqueue, plain": (OFFER, lambda it: partial(work().add.enqueue, 1, 2)),
    "enqueue, replacing": (
        COMMIT,
        lambda it: work().latest.enqueue(it.tag, 1) and partial(work().latest.enqueue, it.tag, 2),
    ),
    "enqueue_many": (OFFER, lambda it: partial(backend().enqueue_many, work().add, [(1, 2)])),
    "get_result": (ANY, lambda it: work().once.enqueue(it.tag).refresh),
    "cancel": (
        "INSERT INTO delayed_queue_task_result",
        lambda it: partial(backend().cancel, work().once.enqueue(it.tag).id),
    ),
}
ON_TOKENS: Final[dict[str, Case]] = {
    "tokens.create_token": (
        ANY, lambda it: partial(tokens.create_token, it.tag, verbs=["add"], topics=["*"]),
    ),
    "tokens.revoke_token": (ANY, lambda it: it.token() and partial(tokens.revoke_token, it.tag)),
    "tokens.find_grant": (ANY, lambda it: partial(tokens.find_grant, it.token())),
    "tokens.list_tokens": (ANY, lambda it: tokens.list_tokens),
    "operating.register_endpoint": (
        COMMIT, lambda it: partial(operating.register_endpoint, f"https://example.com/{it.tag}"),
    ),
    "operating.endpoint_of": (
        ANY, lambda it: partial(operating.endpoint_of, it.endpoint().prefix),
    ),
    "operating.rotate_secret": (ANY, lambda it: partial(operating.rotate_secret, it.endpoint())),
    "operating.disable_endpoint": (
        ANY, lambda it: partial(operating.disable_endpoint, it.endpoint()),
    ),
    "operating.enable_endpoint": (
        ANY, lambda it: partial(operating.enable_endpoint, it.endpoint()),
    ),
}  # fmt: skip
ON_JOBS: Final[dict[str, Case]] = {
    "adding.add_job": (
        OFFER, lambda it: it.topic() and partial(adding.add_job, it.new_job()),
    ),
    "adding.add_jobs": (
        OFFER, lambda it: it.topic() and partial(adding.add_jobs, [it.new_job()]),
    ),
    "adding.find_job": (ANY, lambda it: partial(adding.find_job, it.job(), "job")),
    "adding.delete_job": (
        r"DELETE FROM delayed_queue\s", lambda it: partial(adding.delete_job, it.job(), "job"),
    ),
    "catalogue.read_topic": (ANY, lambda it: partial(catalogue.read_topic, it.topic())),
    "catalogue.list_topics": (ANY, lambda it: catalogue.list_topics),
    "catalogue.topic_stats": (ANY, lambda it: partial(catalogue.topic_stats, it.topic())),
    "catalogue.is_paused": (ANY, lambda it: partial(catalogue.is_paused, it.topic())),
    "catalogue.create_topic": (
        "INSERT INTO delayed_queue_topic", lambda it: partial(catalogue.create_topic, it.tag),
    ),
    "catalogue.configure_topic": (
        COMMIT, lambda it: partial(catalogue.configure_topic, it.topic(), shards=2),
    ),
    "catalogue.pause_topic": (COMMIT, lambda it: partial(catalogue.pause_topic, it.topic())),
    "catalogue.resume_topic": (COMMIT, lambda it: partial(catalogue.resume_topic, it.topic())),
    "consuming.peek": (ANY, lambda it: partial(consuming.peek, it.job(), JobState.READY)),
    "Pop.claim": (LEASED, lambda it: consuming.Pop(it.job()).claim),
    "consuming.touch_job": (LEASED, lambda it: partial(consuming.touch_job, *it.reserved())),
    "consuming.finish_job": (LEASED, lambda it: partial(consuming.finish_job, *it.reserved())),
    "consuming.release_job": (LEASED, lambda it: partial(consuming.release_job, *it.reserved())),
    "consuming.bury_job": (LEASED, lambda it: partial(consuming.bury_job, *it.reserved())),
    "dead.dead_jobs": (ANY, lambda it: partial(dead.dead_jobs, it.topic())),
    "dead.dead_groups": (ANY, lambda it: partial(dead.dead_groups, it.topic())),
    "dead.find_dead_job": (ANY, lambda it: partial(dead.find_dead_job, it.dead_job())),
    "dead.kick_job": (REDRIVE, lambda it: it.dead_job() and partial(dead.kick_job, it.tag, "job")),
    "dead.kick_topic": (REDRIVE, lambda it: it.dead_job() and partial(dead.kick_topic, it.tag)),
    "dead.replay": (REDRIVE, lambda it: partial(dead.replay, it.dead_job())),
    "dead.delete_dead_job": (
        "DELETE FROM delayed_queue_dead_letter",
        lambda it: partial(dead.delete_dead_job, it.dead_job()),
    ),
}  # fmt: skip
ON_NOTIFICATIONS: Final[dict[str, Case]] = {
    "intake.accept": (
        COMMIT, lambda it: partial(intake.accept, [email()], tenant=it.tag),
    ),
    "managing.find": (ANY, lambda it: partial(managing.find, enqueue().id, None)),
    "managing.page": (ANY, lambda it: partial(managing.page, [Status.ENQUEUED], None, None, 9)),
    "managing.suppress": (COMMIT, lambda it: partial(managing.suppress, *it.suppressed())),
    "managing.suppress_once": (
        COMMIT, lambda it: partial(managing.suppress_once, "email", hash_of("email", it.tag)),
    ),
    "managing.lift": (COMMIT, lambda it: partial(managing.lift, *it.suppressed())),
    "managing.cancel": (COMMIT, lambda it: partial(managing.cancel, enqueue().id)),
    "managing.retry": (COMMIT, lambda it: partial(managing.retry, it.failed())),
}  # fmt: skip
CASES: Final[dict[str, Case]] = {
    **{f"DelayedQueue.{name}": case for name, case in ON_QUEUE.items()},
    **{f"GroupService.{name}": case for name, case in ON_GROUPS.items()},
    **{f"DelayedQueueBackend.{name}": case for name, case in ON_TASKS.items()},
    **ON_BATCHES, **ON_CRON, **ON_RUNS, **ON_TOKENS, **ON_JOBS, **ON_NOTIFICATIONS, **ON_SPARK,
}  # fmt: skip
