"""The demo end to end: real workers, a real kill, and a report that can fail."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
import zlib
from datetime import timedelta
from itertools import count

import pytest
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.core.management.color import no_style
from django.db import connection, connections, transaction
from django.db.models import F
from django.utils import timezone

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.testing import drain
from example_project import shop
from example_project.demo import stage
from example_project.demo.orders import FILE, OrdersAct, report
from example_project.demo.report import Console, DemoError, Stalled
from example_project.demo.stage import Stage
from example_project.gateway import is_unreachable_for
from example_project.handlers import close_if_unpaid
from example_project.models import Closing, Delivery, Invoice, Order, SalesReport
from example_project.orders import read_orders
from tests.support.processes import environment, kill_family
from tests.support.sampling import sample

pytestmark = pytest.mark.usefixtures("demo_database")

SOON = 30.0


def line_of(order_id, **change):
    """Return one line of input for an order that is never paid."""
    order = {
        "order_id": order_id,
        "customer": "Ann",
        "amount": "1.00",
        "currency": "EUR",
        "created_at": "2025-11-28T18:00:00Z",
    }
    return json.dumps(order | change).encode() + b"\n"


def unreachable_order_id():
    """Return an id for which the simulated gateway always times out."""
    return next(f"U-{n}" for n in count() if zlib.crc32(f"U-{n}".encode()) % 1000 == 0)


def demo(*arguments):
    """Run the act; return its JSON report and its standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command("demo", "orders", *arguments, "--format", "json", stdout=out, stderr=err)
    report = json.loads(out.getvalue())
    assert report["passed"] is report["acts"]["orders"]["passed"]
    return report["acts"]["orders"], err.getvalue()


def test_a_database_of_another_version_is_named_and_what_to_do():
    def rename(old, new):
        with connection.cursor() as cursor:
            cursor.execute(f'ALTER TABLE delayed_queue_schedule RENAME "{old}" TO "{new}"')

    rename("missed", "forgotten")
    try:
        with pytest.raises(CommandError, match=r"another version.*missed.*run this again"):
            call_command("demo", "orders", stdout=io.StringIO(), stderr=io.StringIO())
    finally:
        rename("forgotten", "missed")


@pytest.mark.slow
def test_every_order_of_the_file_ends_once_though_a_worker_is_killed(tmp_path):
    shop.place([an_order("LEFT-OVER", timezone.now())])  # of an earlier run
    Closing.objects.create(order_id="LEFT-OVER", attempt=1, worker=1)
    path = tmp_path / "orders.jsonl"
    # Shipped orders, whose times span the same half an hour.
    shipped = FILE.read_bytes().splitlines(keepends=True)[::33][:300]
    path.write_bytes(
        b"".join(shipped)
        + line_of(unreachable_order_id())
        + line_of("NO-ACCOUNT", currency="VES")
        + line_of("SALE-00001")  # for the second time
        + b"{broken\n"
    )
    report, said = demo("--input", str(path), "--seconds", "4")

    assert report["passed"] is True
    assert report["orders"] == Order.objects.count() == 302
    check_orders(path, report)
    check_deliveries(report)
    check_kill(report)
    assert "orders.jsonl:303: 'SALE-00001' is on line 1 already" in said
    assert "orders.jsonl:304: Expecting property name" in said
    check_account(said)
    check_that_faults_are_seen(path)


def check_that_faults_are_seen(path):
    """The report of a run that lost an order, and closed another twice, fails."""
    Order.objects.filter(state="paid")[0].delete()
    Closing.objects.create(order_id=Closing.objects.all()[0].order_id, attempt=9, worker=1)
    failed = {each.name for each in report(read_orders(path)[0], 302, None).failed}
    assert {"no order lost", "none closed twice"} <= failed


def check_orders(path, report):
    """Each order of the file has its expected outcome, and the report counts it."""
    lines = {each.order_id: each for each in read_orders(path)[0]}
    stored = {order.order_id: order for order in Order.objects.all()}
    assert stored.keys() == lines.keys()
    dead = set(DeadLetter.objects.values_list("key", flat=True))
    assert {"NO-ACCOUNT", unreachable_order_id()} <= dead
    ends = {order_id: end_of(order, dead) for order_id, order in stored.items()}
    assert {order_id for order_id, end in ends.items() if end == "paid"} <= {
        order_id for order_id, line in lines.items() if line.is_paid_in_time
    }
    assert set(ends.values()) == {"paid", "dead", "closed"}
    assert not Order.objects.filter(closed_at__lt=F("close_at")).exists()
    assert Closing.objects.count() == report["closed"] > 50
    # The number in time depends on the load of the machine.
    assert report["paid"] > 0
    seen = Delivery.objects.filter(
        order_id__in=Order.objects.filter(state="paid").values("order_id")
    )
    assert not seen.filter(outcome=Delivery.Outcome.CLOSED).exists()
    assert report["dead"] == len(dead)
    assert not Message.objects.filter(kind=shop.queue.kind).exists()
    assert SalesReport.objects.exists()
    large = Order.objects.filter(state="paid", amount__gte=shop.INVOICED_FROM)
    assert set(Invoice.objects.values_list("order_id", flat=True)) == {
        each.order_id for each in large
    }


def end_of(order, dead):
    """Return the outcome of the order; fail if it has none, or two."""
    if order.state == Order.State.PAID:
        return "paid"
    if order.state == Order.State.OPEN:
        assert order.order_id in dead
        return "dead"
    assert Closing.objects.filter(order_id=order.order_id).count() == 1
    assert order.order_id not in dead
    return "closed"


def check_deliveries(report):
    # The unreachable order's second and third attempt, and the killed worker's messages.
    assert Delivery.objects.filter(attempt__gt=1).count() >= 3
    assert report["delivered"] == Delivery.objects.count()
    assert 0 < report["late_p50_ms"] <= report["late_p99_ms"]


def check_kill(report):
    assert any(each["name"] == "killed worker" for each in report["checks"])
    killed = Delivery.objects.filter(outcome="unfinished")
    assert killed.exists()
    for cut in killed:
        later = Delivery.objects.get(order_id=cut.order_id, attempt=cut.attempt + 1)
        assert later.worker != cut.worker
        assert later.delivery_type == "redelivery"


def check_account(said):
    # The demo prints it at the start and at the end.
    [(user, password)] = set(re.findall(r"user (\S+), password (\S+)\)", said))
    account = authenticate(username=user, password=password)
    assert account is not None
    assert account.is_superuser


def quiet_console():
    out = io.StringIO()
    return Console(OutputWrapper(out), OutputWrapper(out), no_style())


def run_with(tmp_path, program, timeout=20.0):
    """Run the act with another program instead of the worker."""
    path = tmp_path / "orders.jsonl"
    path.write_bytes(line_of("A", close_after=1))
    manage = (sys.executable, "-c", program)
    act = OrdersAct(path, seconds=0.1, workers=1)
    with Stage(quiet_console(), manage, timeout) as ours:
        ours.prepare([act])
        act.run(ours)


def test_workers_that_die_end_the_run_with_their_last_words(tmp_path):
    program = "import sys; sys.exit('no such luck')"
    with pytest.raises(DemoError, match=r"ended by itself with exit code 1(.|\n)*no such luck"):
        run_with(tmp_path, program)


def test_workers_that_never_get_ready_end_the_run_too(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "TIMEOUT_SECONDS", 1.0)
    with pytest.raises(Stalled, match="No progress for 1 s: 0 of 1 processes have started"):
        run_with(tmp_path, "import sys; sys.stdin.read()")


def test_two_runs_at_a_time_are_refused(tmp_path):
    with stage.alone(), pytest.raises(DemoError, match="Another demo is running"):
        run_with(tmp_path, "")


class RunningDemo:
    """The command as a process, past the start of its worker."""

    COMMAND = ("demo", "orders", "--orders", "100", "--workers", "1")

    def __init__(self, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", *self.COMMAND, *options],
            env={**environment(), "DEBUG": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.workers = [
            int(pid) for pid in re.findall(r"\d+", self.said_until("worker")[-1].partition(":")[2])
        ]
        self.said_until("offered")

    def said_until(self, word):
        """Return its output up to the line that starts with the word."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if line.split()[:1] == [word]:
                return said
        raise AssertionError(said)

    def __enter__(self):
        assert len(self.workers) == 1
        return self

    def __exit__(self, *exc_info):
        kill_family(self.process)
        self.process.communicate()


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", sample([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_interrupted_it_stops_its_workers_and_says_what_is_left(tmp_path, number):
    with RunningDemo("--seconds", "60") as running:
        running.process.send_signal(number)
        _, err = running.process.communicate(timeout=SOON)
        assert running.process.returncode == 130, err
        assert all(map(is_gone, running.workers))
    assert "Interrupted; all processes are stopped." in err
    assert f"{Message.objects.count():,} messages are left" in err
    assert "Traceback" not in err


@pytest.mark.long
@pytest.mark.slow
def test_what_does_not_get_on_is_given_up_and_served_all_the_same():
    with RunningDemo("--seconds", "60", "--serve") as running:
        os.kill(running.workers[0], signal.SIGKILL)
        said = running.said_until("serving")
        url = re.search(r"http://\S+/admin/", said[-1])
        assert url is not None, said
        with urllib.request.urlopen(f"{url[0]}login/", timeout=SOON) as answer:  # noqa: S310
            assert answer.status == 200
        running.process.send_signal(signal.SIGINT)
        _, err = running.process.communicate(timeout=SOON)
    assert running.process.returncode == 1
    failed = rf"FAIL act finished +The worker \(process {running.workers[0]}\) ended by itself"
    assert any(re.search(failed, line) for line in said), said
    assert "Failed: act finished (orders)" in err
    assert "Traceback" not in err


def an_order(order_id, close_at, **change):
    order = {"customer": "Ann", "amount": "1.00", "currency": "EUR", "created_at": close_at}
    return Order(order_id=order_id, close_at=close_at, **order | change)


def test_an_order_is_placed_with_its_message_or_not_at_all():
    due = timezone.now() + timedelta(hours=1)
    assert shop.place([an_order("A", due), an_order("B", due)]) == 2
    message = shop.queue.read("A")
    assert message is not None
    assert message.payload == {"amount": "1.00", "currency": "EUR"}
    with pytest.raises(InvalidMessage):  # of the message only: its key is empty
        shop.place([an_order("C", due), an_order("", due)])
    assert set(Order.objects.values_list("order_id", flat=True)) == {"A", "B"}
    assert not shop.queue.contains_message("C")


def test_paying_drops_the_message_and_is_refused_after_the_deadline():
    now = timezone.now()
    shop.place([an_order("EARLY", now + timedelta(hours=1)), an_order("LATE", now)])
    assert shop.pay("EARLY") is True
    assert not shop.queue.contains_message("EARLY")
    assert shop.pay("EARLY") is False
    assert shop.pay("LATE") is False
    assert shop.queue.contains_message("LATE")
    assert dict(Order.objects.values_list("order_id", "state")) == {"EARLY": "paid", "LATE": "open"}


def test_a_large_payment_gets_an_invoice_and_one_that_is_undone_gets_none():
    later = timezone.now() + timedelta(hours=1)
    shop.place([an_order("SMALL", later), an_order("LARGE", later, amount=shop.INVOICED_FROM)])
    with contextlib.suppress(InterruptedError), transaction.atomic():
        shop.pay("LARGE")
        raise InterruptedError
    assert drain().handled == 0
    assert shop.pay("SMALL")
    assert shop.pay("LARGE")
    assert drain().handled == 1
    [invoice] = Invoice.objects.all()
    assert (invoice.order_id, invoice.text) == ("LARGE", "200.00 EUR received of Ann.")
    assert TaskResult.objects.get().return_value == invoice.text


def test_two_deliveries_of_an_order_at_once_close_it_once():
    reachable = next(f"R-{n}" for n in count() if not is_unreachable_for(f"R-{n}", 1))
    shop.place([an_order(reachable, timezone.now())])
    envelope = shop.queue.try_poll()
    assert envelope is not None
    start = threading.Barrier(2)

    def deliver():
        start.wait()
        close_if_unpaid(envelope)
        connections.close_all()

    threads = [threading.Thread(target=deliver) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Closing.objects.count() == 1
    outcomes = sorted(Delivery.objects.values_list("outcome", flat=True))
    assert outcomes == ["closed", "nothing to do"]
