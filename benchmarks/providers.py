"""Providers of notifications in a process of their own: ``python -m benchmarks.providers``."""

from __future__ import annotations

import json
import logging
import sys
from argparse import ArgumentParser
from typing import Any

from aiohttp import web

from example_project.fakes import FakeSmtp, FakeWeb, Server, WebServer


class Control(WebServer):
    """Tells over HTTP what the others have accepted, for whoever runs them in another process."""

    def __init__(self, *servers: Server) -> None:
        super().__init__()
        self._servers = servers

    def _routes(self) -> list[web.RouteDef]:
        return [web.get("/accepted", self._get)]

    async def _get(self, request: web.Request) -> web.Response:
        # A copy in one step: the servers go on counting in their own threads.
        every = [dict(server.accepted) for server in self._servers]
        counts = {key: count for each in every for key, count in each.items()}
        found: dict[str, Any] = {
            "total": sum(counts.values()),
            "twice": sum(count > 1 for count in counts.values()),
        }
        if "counts" in request.query:
            found["counts"] = counts
        return web.json_response(found)


def main() -> None:
    """Print the ports, and stop when the input ends."""
    parser = ArgumentParser("python -m benchmarks.providers")
    parser.add_argument("--latency", type=float, default=0.0, help="of each answer, in seconds")
    latency = parser.parse_args().latency
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    with (
        FakeSmtp(latency=latency) as smtp,
        FakeWeb(latency=latency) as sms,
        Control(smtp, sms) as control,
    ):
        ports = {"smtp": smtp.port, "sms": sms.port, "control": control.port}
        sys.stdout.write(json.dumps(ports) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
