"""The services whose urls are called: a server on loopback that verifies, witnesses and misbehaves.

It stands for software that somebody else wrote, so it imports nothing of ours.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

# How old a signed call may be: older ones could be a recording that is played again.
TOLERANCE_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Call:
    """One request that arrived, and how it was answered; instants are Unix seconds."""

    path: str
    body: Any
    webhook_id: str
    arrived_at: float
    answered_at: float
    answer: str

    @property
    def succeeded(self) -> bool:
        return self.answer.startswith("2")


# A rule returns what to answer to the n-th call (from 1) with this body: a status, possibly
# with Retry-After in seconds as in "429 2", or "reset" or "hang".
Rule = Callable[[Any, int], str]


def is_signed(secret: str, headers: Any, body: bytes) -> bool:
    """Verify as Standard Webhooks 1.0 describes it."""
    sent_at = headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > TOLERANCE_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers.get('webhook-id', '')}.{sent_at}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(each.removeprefix("v1,"), wanted) for each in given)


class Receiver:
    """Listens until its block is left; ``calls`` are those with a valid signature, in order."""

    def __init__(self, hang_seconds: float) -> None:
        self.secret = ""
        self.calls: list[Call] = []
        self.unsigned = 0
        self._rules: dict[str, Rule] = {}
        self._hang_seconds = hang_seconds
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._is_over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.handle(self)

            def log_message(self, *arguments: object) -> None:
                """Be silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def answer(self, path: str, rule: Rule) -> None:
        """Answer calls of the path by the rule, from now on."""
        self._rules[path] = rule

    def calls_of(self, path: str) -> list[Call]:
        with self._lock:
            return [each for each in self.calls if each.path == path]

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        arrived_at = time.time()
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if not is_signed(self.secret, request.headers, body):
            with self._lock:
                self.unsigned += 1
            _answer(request, "401")
            return
        value = json.loads(body)
        webhook_id = request.headers["webhook-id"]
        with self._lock:
            self._counts[request.path, webhook_id] += 1
            answer = self._rules[request.path](value, self._counts[request.path, webhook_id])
        if answer == "hang":
            self._is_over.wait(self._hang_seconds)
        call = Call(request.path, value, webhook_id, arrived_at, time.time(), answer)
        with self._lock:
            self.calls.append(call)
        _answer(request, answer)


def _answer(request: BaseHTTPRequestHandler, answer: str) -> None:
    """Answer with a status, or misbehave."""
    if answer in {"reset", "hang"}:
        # With nothing said, and so that the peer sees a reset.
        linger = struct.pack("ii", 1, 0)
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.close_connection = True
        request.connection.close()
        return
    status, _, retry_after = answer.partition(" ")
    request.send_response(int(status))
    if retry_after:
        request.send_header("Retry-After", retry_after)
    if status == "302":
        request.send_header("Location", "http://169.254.169.254/latest/meta-data/")
    request.send_header("Content-Length", "0")
    request.end_headers()
