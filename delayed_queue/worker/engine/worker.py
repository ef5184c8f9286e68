"""The worker: one process that claims and handles messages."""

from __future__ import annotations

import logging
import math
import random
import select
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from django.db import Error, connections

from delayed_queue.conf import get_settings
from delayed_queue.cron.keeper import CronKeeper, CronThread
from delayed_queue.db.own import using_own_connection
from delayed_queue.db.resilience import repeat
from delayed_queue.db.wakeups import Listener
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.handlers import Registry, registry
from delayed_queue.logs import described, log
from delayed_queue.observe import signals
from delayed_queue.observe.workers import DRAIN, RESTART
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.consumers import Consumer, slowest_scan
from delayed_queue.worker.engine.database import check_schema
from delayed_queue.worker.engine.heartbeat import Heartbeat, Snapshot
from delayed_queue.worker.engine.loop import ClaimLoop
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.options import WorkerOptions

# Seconds between two reads of notifications while the worker never sleeps: its other queues.
HEARING_SECONDS: Final = 0.05


class Worker:
    """Claims and handles messages in this process; ``run()`` returns when it was stopped.

    The thread that runs it has the claim loop. Handlers run in the pools: threads, and an event
    loop for those that are ``async def``. ``stop()`` may be called from a signal handler or
    another thread.
    """

    def __init__(
        self,
        options: WorkerOptions,
        handlers: Registry = registry,
        board: Board | None = None,
        process: int = 0,
    ) -> None:
        self.options = options
        self.board = board or Board.new(options.slots)
        self._process = process
        self._loop = ClaimLoop(self, options, handlers, self.board)
        self._keeper = self._loop.keeper
        self.counts = self._loop.counts
        self.dispatcher = self._loop.dispatcher
        self.dynamic = self._loop.turns.dynamic
        self._cron = CronThread(CronKeeper(options.using), options.using)
        self._heartbeat = Heartbeat(options.using, self.describe, self.obey)
        # Called at the first stop: limits the time that it takes.
        self.on_stop: Callable[[], None] = lambda: None
        self._heard_at = 0.0
        self._stuck = 0
        self._restarts = False

    def __str__(self) -> str:
        return self.options.worker_id

    @property
    def consumers(self) -> list[Consumer]:
        return self._loop.turns.all

    @property
    def queues(self) -> list[str]:
        return list(dict.fromkeys(consumer.queue.name for consumer in self.consumers))

    @property
    def serves(self) -> list[str]:
        """The queues and sources it will serve, before the sources are queried."""
        return [*self.queues, *(f"the {name}" for name in self.dynamic.names)]

    @property
    def is_used_up(self) -> bool:
        """True if another process must be started when this one has ended."""
        return self._restarts or self._stuck >= self.options.concurrency

    @property
    def in_flight(self) -> int:
        return self.dispatcher.in_flight

    def describe(self) -> Snapshot:
        """Return what operators see; may be called from another thread."""
        counts = self.counts
        done: Counter[str] = Counter()
        for consumer in self.consumers:
            done[consumer.queue.name] += consumer.tally.done
        return Snapshot(
            name=str(self),
            process=self._process,
            holder=self.dispatcher.holder,
            queues=self.queues,
            in_flight=self.in_flight,
            load=self.dispatcher.load(),
            command=DRAIN if self.board.is_drained else "",
            done=counts.done,
            failed=counts.failed,
            dead=counts.dead,
            lost=counts.lost,
            done_by_queue=done,
            tallies=[consumer.tally for consumer in self.consumers],
            scan=slowest_scan(self.consumers),
            refused=self._loop.refusals.shown(),
        )

    def stop(self) -> None:
        """Claim no more; finish what is in flight, within the shutdown timeout."""
        was_stopped = self._loop.stop.is_set()
        self._loop.stop.set()
        if not was_stopped:
            self.on_stop()

    def obey(self, command: str) -> None:
        """Follow the command of an operator in the worker's row; called at each heartbeat."""
        if command == RESTART:
            self._restart("operator")
        elif self.board.is_drained is not (command == DRAIN):
            self.board.drain(is_drained=command == DRAIN)
            if command:
                log(logging.INFO, "worker_drained", worker=self)
            else:
                log(logging.INFO, "worker_resumed", worker=self)
            self._loop.wake_channel.wake()

    def _restart(self, reason: str) -> None:
        if not self._restarts:
            log(logging.INFO, "worker_restarts", worker=self, reason=reason)
        self._restarts = True
        self.stop()

    def run(self) -> Counts:
        """Work until stopped, drained (burst), or done with max_messages."""
        with using_own_connection(self.options.using):
            try:
                self._start()
                while not self._is_over():
                    self._run_connected()
            finally:
                self._wind_down()
                signals.announce(signals.worker_stopped, self)
        return self.counts

    def _start(self) -> None:
        self._loop.start()
        self._heartbeat.start()
        if self.options.cron and not self.options.burst:
            self._cron.start()
        signals.announce(signals.worker_started, self)

    def _run_connected(self) -> None:
        """Run the claim loop until the worker is over or the database unavailable."""
        loop = self._loop
        try:
            if loop.outage.is_at_start and (differences := check_schema(self.options.using)):
                log(logging.WARNING, "schema_differs", **differences)
            with Listener(loop.turns.kinds, self.options.using, hears_leases=True) as listener:
                # Leases revoked before LISTEN are not announced, so check them once.
                self._keeper.check(listener.touched_leases())
                loop.turns.read_overdue()
                while not self._is_over():
                    self._iterate(listener)
        except (Error, ResourceUnavailable) as error:
            self.board.turn()
            loop.outage.note(error)
            connections[self.options.using].close()
            loop.turns.wake()  # notifications meanwhile were missed
            pause = random.uniform(0.1, 1.0)  # noqa: S311 # workers reconnect one by one
            select.select([loop.stop], [], [], pause)

    def _iterate(self, listener: Listener) -> None:
        self._count()
        self._give_up_late_ones()
        self._replace_when_used_up()
        self._update_dynamic(listener)
        goes_on = self._loop.tick()
        now = time.monotonic()
        if now - self._heard_at > HEARING_SECONDS:
            self._heard_at = now
            if listener.heard():
                self._hear(listener)
        if not goes_on and not self._is_over():
            self._sleep(listener)

    def _update_dynamic(self, listener: Listener) -> None:
        """Add and remove consumers of dynamic queues, and scan for the idle ones."""
        if self._loop.stop.is_set():
            return
        if self.dynamic.ask():
            listener.listen_to(self._loop.turns.kinds)
            self._keeper.shorten(self._loop.turns.shortest_lease)
        self.dynamic.idle_scan()

    def _count(self) -> None:
        self.board.count((*self.counts.numbers, self.in_flight))

    def _give_up_late_ones(self) -> None:
        self._stuck = self.dispatcher.executor.give_up_late_ones()
        self.board.set_strays(max(self._stuck, 0))
        if not self._loop.stop.is_set() and self._stuck >= self.options.concurrency:
            log(logging.ERROR, "threads_stuck", worker=self, threads=self._stuck)
            self.stop()

    def _replace_when_used_up(self) -> None:
        """Let another process take over from one that handled enough, or grew too large.

        The supervisor starts it and then stops this one. Without a supervisor this one exits.
        """
        reason = self._used_up_by()
        if reason and not self._process:
            self._restart(reason)
        elif reason and not self.board.is_used_up:
            log(logging.INFO, "worker_restarts", worker=self, reason=reason)
            self.board.use_up()

    def _used_up_by(self) -> str:
        # Only messages that have ended count: each process must end at least one.
        options, ended = self.options, sum(self.counts.numbers)
        if ended >= (options.max_messages_per_process or math.inf):
            return "messages"
        is_large = self._heartbeat.memory >= (options.max_memory_per_process or math.inf) * 2**20
        return "memory" if ended and is_large else ""

    def _is_over(self) -> bool:
        if self._loop.stop.is_set():
            return True
        if self.dispatcher.room_left == 0:
            return not self._loop.has_work
        return self.options.burst and self._loop.is_drained()

    # Sleeping

    def _sleep(self, listener: Listener) -> None:
        """Sleep until a handler ends, a message may be due, or the worker is stopped."""
        with self.dispatcher.sleeping():
            nap = min(
                self._loop.nap(),
                self.options.poll_interval.total_seconds(),
                get_settings().WATCHDOG.total_seconds() / 4,
            )
            if nap > 0 and listener.wait(nap, self._loop.stop, self._loop.wake_channel):
                self._hear(listener)
            self._loop.wake_channel.clear()

    def _hear(self, listener: Listener) -> None:
        self._loop.turns.wake(listener.announced())
        self._keeper.check(listener.touched_leases())

    # Stopping

    def _wind_down(self) -> None:
        """Release what was not started, finish what was, release what does not finish.

        An orderly stop uses up no attempt (W15), so all of it is released uncounted.
        """
        self._cron.stop()
        self.stop()
        try:
            self._loop.finish()
            for claim, envelope in self.dispatcher.take_back():
                claim.leave(envelope)
            if self._loop.has_work:
                self._finish_in_flight()
            for claim in self._keeper.claims():
                for envelope in list(claim.in_flight()):
                    claim.leave(envelope)
            repeat(self.options.using, self._loop.settle)
        except (Error, ResourceUnavailable) as error:
            # Nothing is lost: the leases run out.
            log(logging.WARNING, "shutdown_incomplete", error=described(error))
        finally:
            self._keeper.stop()
            self._heartbeat.stop()
            self.dispatcher.stop(1.0 if not self._loop.has_work else 0.0)
            self._loop.close()
            self._count()
            connections[self.options.using].close()

    def _finish_in_flight(self) -> None:
        deadline = time.monotonic() + self.options.shutdown_timeout.total_seconds()
        with Listener([], self.options.using) as listener:
            while True:
                self._give_up_late_ones()
                self._loop.tick()
                left = deadline - time.monotonic()
                if not self._loop.has_work or left <= 0:
                    return
                with self.dispatcher.sleeping():
                    if not self._loop.has_results:
                        listener.wait(min(left, 1.0), self._loop.wake_channel)
                    self._loop.wake_channel.clear()
