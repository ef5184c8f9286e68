"""Providers of notifications, and what they accepted: ``python -m benchmarks.providers``."""

from __future__ import annotations

import json
import logging
import sys

from aiohttp import web

from example_project.fakes import FakeSmtp, FakeWeb, Server, WebServer


class Control(WebServer):
    """Reports over HTTP how much the providers accepted, and how much of it twice."""

    def __init__(self, *servers: Server) -> None:
        super().__init__()
        self._servers = servers

    def _routes(self) -> list[web.RouteDef]:
        return [web.get("/accepted", self._get)]

    async def _get(self, request: web.Request) -> web.Response:
        # A copy in one step: the servers count in threads of their own.
        counts = [count for server in self._servers for count in dict(server.accepted).values()]
        return web.json_response({"total": sum(counts), "twice": sum(n > 1 for n in counts)})


def main() -> None:
    """Print the ports; stop when the input ends. The argument is the latency in seconds."""
    latency = float(sys.argv[1])
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
