"""The health of a worker, as a file and over HTTP (W6, W13)."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

from delayed_queue.worker import Counts
from delayed_queue.worker.process.health import (
    HealthReport,
    HealthReporter,
    HealthServer,
    ProcessHealth,
    problems_of_file,
    write_health_file,
)
from tests.support.processes import wait_until

MINUTE = timedelta(minutes=1)
HEALTHY = HealthReport("w-1", True, (ProcessHealth(0, 4711, 0.25, 3, 100, 2),))
SICK = replace(HEALTHY, healthy=False)


def test_the_report_as_json() -> None:
    assert json.loads(HEALTHY.as_json()) == {
        "worker": "w-1",
        "healthy": True,
        "processes": [
            {
                "process": 0, "pid": 4711, "turned_seconds_ago": 0.25,
                "in_flight": 3, "done": 100, "failed": 2,
            }
        ],
    }  # fmt: skip


class TestFile:
    def test_it_has_the_report_and_may_be_read_by_others(self, tmp_path: Path) -> None:
        path = tmp_path / "health"
        write_health_file(path, HEALTHY)
        assert path.read_text() == HEALTHY.as_json()
        assert path.stat().st_mode & 0o777 == 0o644
        assert list(tmp_path.iterdir()) == [path]

    def test_a_reader_never_sees_half_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "health"
        large = replace(HEALTHY, processes=HEALTHY.processes * 500)
        texts = {HEALTHY.as_json(), large.as_json()}
        write_health_file(path, HEALTHY)
        stop, seen = threading.Event(), set()

        def read() -> None:
            while not stop.is_set():
                seen.add(path.read_text())

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(50):
            write_health_file(path, large)
            write_health_file(path, HEALTHY)
        stop.set()
        reader.join()
        assert seen <= texts

    def test_it_goes_with_its_worker(self, tmp_path: Path) -> None:
        path = tmp_path / "health"
        reports = iter([HEALTHY, SICK])
        with HealthReporter(lambda: next(reports, SICK), Counts, file=path):
            assert path.read_text() == HEALTHY.as_json()
            wait_until(lambda: path.read_text() == SICK.as_json())
        assert list(tmp_path.iterdir()) == []

    def test_what_cannot_be_written_is_raised_and_leaves_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "health"
        path.mkdir()
        with pytest.raises(IsADirectoryError):
            write_health_file(path, HEALTHY)
        assert list(tmp_path.iterdir()) == [path]


class TestReadingIt:
    def test_a_fresh_and_healthy_one_has_no_problems(self, tmp_path: Path) -> None:
        write_health_file(tmp_path / "health", HEALTHY)
        assert problems_of_file(tmp_path / "health", MINUTE) == []

    def test_each_problem_is_said(self, tmp_path: Path) -> None:
        path = tmp_path / "health"
        write_health_file(path, SICK)
        old = time.time() - 90
        os.utime(path, (old, old))
        unhealthy, stale = problems_of_file(path, MINUTE)
        assert unhealthy == "the worker w-1 reports that it is unhealthy"
        assert stale.startswith("the health file is 9")
        assert stale.endswith("0:01:00 is allowed")

    @pytest.mark.parametrize("text", ["", "{", "[]", "5", "{}", "\xff"])
    def test_what_is_no_health_file(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "health"
        assert "cannot be read" in problems_of_file(path, MINUTE)[0]
        path.write_bytes(text.encode("latin-1"))
        assert problems_of_file(path, MINUTE) == [f"{path} is not a health file of a worker"]


@contextmanager
def serving(
    report: Callable[[], HealthReport] = lambda: HEALTHY, host: str = "127.0.0.1", port: int = 0
) -> Iterator[HealthServer]:
    server = HealthServer(host, port, report)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def asked(
    server: HealthServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()


def connected(server: HealthServer) -> socket.socket:
    return socket.create_connection(server.address, timeout=10)


class TestServer:
    @pytest.mark.parametrize(("report", "status"), [(HEALTHY, 200), (SICK, 503)])
    @pytest.mark.parametrize("path", ["/healthz", "/healthz?verbose=1"])
    def test_healthz_tells_the_health(self, report: HealthReport, status: int, path: str) -> None:
        with serving(lambda: report) as server:
            response, body = asked(server, path)
        assert (response.status, body) == (status, report.as_json())
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers["Server"] == "delayed_queue"

    def test_metrics_that_wait_for_the_database_hold_up_no_probe(self) -> None:
        waiting, go_on = threading.Event(), threading.Event()

        class Waiting(Collector):
            def describe(self) -> list[Metric]:
                return []

            def collect(self) -> Iterator[Metric]:
                waiting.set()
                assert go_on.wait(20)
                yield from ()

        with serving(lambda: HEALTHY) as server:
            collector = Waiting()
            REGISTRY.register(collector)
            scrape = threading.Thread(target=asked, args=(server, "/metrics"))
            scrape.start()
            try:
                assert waiting.wait(20)
                assert asked(server, "/healthz")[0].status == 200
            finally:
                go_on.set()
                scrape.join(20)
                REGISTRY.unregister(collector)

    def test_metrics_are_those_of_the_process(self) -> None:
        with serving() as server:
            response, body = asked(server, "/metrics")
            modern, _ = asked(server, "/metrics", Accept="application/openmetrics-text")
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain")
        assert "process_cpu_seconds_total" in body
        assert modern.headers["Content-Type"].startswith("application/openmetrics-text")

    def test_without_the_library_there_are_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with serving() as server:
            assert asked(server, "/metrics")[0].status == 404
            assert asked(server, "/healthz")[0].status == 200

    @pytest.mark.parametrize("path", ["/", "/healthz/", "/health", "/metrics/x"])
    def test_nothing_else_is_there(self, path: str) -> None:
        with serving() as server:
            assert asked(server, path)[0].status == 404

    def test_a_report_that_fails_answers_nothing_and_is_logged(self, caplog):
        def fail() -> HealthReport:
            raise LookupError("no report")

        with serving(fail) as server:
            with pytest.raises(http.client.RemoteDisconnected):
                asked(server, "/healthz")
            wait_until(lambda: "event=health_request_failed" in caplog.text)

    def test_a_client_that_goes_away_is_no_news(self, caplog, capfd):
        with serving() as server:
            with connected(server) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.sendall(b"GET /hea")
            assert asked(server, "/healthz")[0].status == 200
        assert (caplog.text, capfd.readouterr().err) == ("", "")

    def test_it_is_bound_to_the_address_given(self) -> None:
        """A server of all addresses would fail if another program had the port at one of them."""
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with serving(host="127.0.0.2", port=port) as server:
                assert server.address == ("127.0.0.2", port)
            with pytest.raises(OSError, match="in use"), serving(host="0.0.0.0", port=port):  # noqa: S104
                pass

    @pytest.mark.parametrize(("host", "bound"), [("::1", "::1"), ("", "0.0.0.0")])  # noqa: S104
    def test_other_families_and_all_addresses(self, host: str, bound: str) -> None:
        with serving(host=host) as server:
            assert server.address[0] == bound
            assert asked(server, "/healthz")[0].status == 200

    def test_after_stop_nobody_listens(self) -> None:
        with serving() as server:
            address = server.address
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=10)
        HealthServer(*address, lambda: HEALTHY).stop()  # never started, and the port is free
