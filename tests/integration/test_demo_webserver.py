"""The demo's web server: a port that it has before it tells anybody."""

from __future__ import annotations

import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from example_project.demo import webserver
from example_project.demo.exceptions import DemoError
from example_project.demo.processes import Children
from example_project.demo.webserver import WebServer

pytestmark = pytest.mark.django_db(transaction=True)


def test_servers_that_start_at_once_have_ports_of_their_own(tmp_path: Path):
    start = threading.Barrier(8)

    def open_one(children: Children) -> WebServer:
        start.wait()
        return WebServer(children)

    with Children(tmp_path) as children, ThreadPoolExecutor(8) as pool:
        opened = [pool.submit(open_one, children) for _ in range(8)]
        servers = [each.result() for each in opened]
        assert len({each.address for each in servers}) == 8
        for each in servers[:2]:
            each.start()
            with urllib.request.urlopen(f"{each.admin}login/") as answer:  # noqa: S310 # ours
                assert answer.status == 200
        for each in servers[2:]:
            each.close()


def test_without_a_free_port_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with Children(tmp_path) as children:
        only = WebServer(children)
        monkeypatch.setattr(webserver, "FIRST_PORT", int(only.address.rpartition(":")[2]))
        monkeypatch.setattr(webserver, "TRIED_PORTS", 1)
        with pytest.raises(DemoError, match=r"No port from \d+ to \d+ is free"):
            WebServer(children)
        only.close()
