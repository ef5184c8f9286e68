"""``python -m tests.chaos``: a soak on a server of its own, with a report and a verdict."""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

import django

from tests.chaos.schedule import FAULTS, drawn

if TYPE_CHECKING:
    from example_project.postgres import EmbeddedPostgres
    from tests.chaos.director import Director
    from tests.chaos.producer import Producer
    from tests.chaos.referee import Findings
    from tests.support.programs import Program
    from tests.support.proxy import Proxy

LEASE = "1.5"
# A drain that takes longer has stopped for good.
DRAIN_SECONDS = 90.0


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--consumers", type=int, default=2)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parsed(arguments)
    say(f"seed {options.seed}, {options.seconds:g} s")
    from tests.support.servers import environment_on, private_server

    with private_server() as server:
        os.environ |= environment_on(f"{server.socket_url}&application_name=chaos-producer")
        django.setup()
        with quiet_unless_broken() as logs:
            findings = soaked(server, options)
            logs.is_wanted = bool(findings.broken)
    report(findings, options.seed)
    return 1 if findings.broken else 0


@dataclass
class Logs:
    """The output of the programs, printed after a failure."""

    text: io.StringIO
    is_wanted: bool = True


@contextmanager
def quiet_unless_broken() -> Iterator[Logs]:
    logs = Logs(io.StringIO())
    try:
        with redirect_stdout(logs.text):
            yield logs
    finally:
        if logs.is_wanted:
            say(logs.text.getvalue())


def soaked(server: EmbeddedPostgres, options: argparse.Namespace) -> Findings:
    """Run the soak; return the referee's findings."""
    from tests.chaos import audit, groups
    from tests.chaos.director import Director
    from tests.chaos.producer import GROUPED, Producer
    from tests.support.proxies import proxied

    audit.install()
    groups.install()
    with ExitStack() as stack:
        proxy = stack.enter_context(proxied())
        workers, consumers = started(stack, proxy, options)
        producer = Producer(["soak", "exact", *GROUPED], options.seed)
        director = Director(workers, consumers, proxy, server)
        producer.start()
        director.run(drawn(options.seed, options.seconds), options.seconds)
        producer.stop()
        drain(director)
        codes = [each.stop() for each in workers]
        return judged(producer, director, codes)


def started(
    stack: ExitStack, proxy: Proxy, options: argparse.Namespace
) -> tuple[list[Program], list[Program]]:
    from tests.support.programs import running, working

    names = ("soak", "exact", "limited", "ordered")
    queues = [each for name in names for each in ("--queue", name)]
    worker = (*queues, "--lease", LEASE, "--concurrency", "4", "--batch-size", "20")
    workers = [working(*worker, url=proxy.url) for _ in range(options.workers)]
    consumer = ("-m", "tests.support.consumer", "exact")
    consumers = [running(*consumer, url=proxy.url) for _ in range(options.consumers)]
    return [stack.enter_context(each) for each in workers], [
        stack.enter_context(each) for each in consumers
    ]


def drain(director: Director) -> None:
    from tests.support.ledger import is_drained
    from tests.support.processes import wait_until

    def is_over() -> bool:
        director.tend()
        return is_drained()

    wait_until(is_over, DRAIN_SECONDS)


def judged(producer: Producer, director: Director, codes: list[int]) -> Findings:
    from tests.chaos.referee import Findings, judge_exact, judge_groups, judge_leased

    findings = Findings()
    findings.counts["producer: calls"] = producer.calls
    findings.counts["producer: calls whose outcome is unknown"] = producer.doubtful
    for name in FAULTS:
        findings.counts[f"fault: {name}"] = director.happened[name]
    judge_leased("soak", producer.confirmed["soak"], director.killed, findings)
    judge_exact("exact", producer.confirmed["exact"], findings)
    judge_groups("limited", 2, findings)
    judge_groups("ordered", 1, findings, is_ordered=True)
    findings.expect("worker did not end with 0", {str(each) for each in codes if each})
    return findings


def report(findings: Findings, seed: int) -> None:
    for name, number in findings.counts.items():
        say(f"{number:>9,}  {name}")
    for name, versions in findings.broken.items():
        say(f"{len(versions):>9,}  BROKEN  {name}: {', '.join(versions[:5])}")
    if findings.broken:
        say(f"again: python -m tests.chaos --seed {seed}")
    say("broken promises: " + (str(len(findings.broken)) if findings.broken else "none"))


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the report is this program's output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
