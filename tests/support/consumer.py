"""A program that consumes a queue for ever: effects in the transaction that deletes the message."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from delayed_queue import DelayedQueue


def main(name: str) -> None:
    django.setup()
    from django.db import Error

    from delayed_queue import DelayedQueue

    queue = DelayedQueue(name)
    pause = threading.Event()
    while True:
        try:
            consume_what_is_due(queue)
        except Error as error:
            # The transaction rolls back message and effect, and the next consumer takes the
            # message.
            print(f"lost: {error}", flush=True)  # noqa: T201 - its log
        pause.wait(0.1)


def consume_what_is_due(queue: DelayedQueue) -> None:
    from tests.workerapp.handlers import record_payload

    is_due = True
    while is_due:
        with queue.consume() as envelope:
            is_due = envelope is not None
            if envelope is not None:
                record_payload(envelope)


if __name__ == "__main__":
    main(*sys.argv[1:])
