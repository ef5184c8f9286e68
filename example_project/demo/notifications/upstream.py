"""The services that ask for notifications over HTTP, and one that changes its mind."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from example_project.demo.notifications.campaign import reason_of
from example_project.demo.notifications.traffic import Answer, Traffic, Way
from example_project.notifications.samples import Sample

PATH: Final = "/v1/notifications"
TIMEOUT_SECONDS: Final = 30.0


class Upstream:
    """One kept connection to the REST interface; for one thread."""

    def __init__(self, address: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(
            urlsplit(address).netloc, timeout=TIMEOUT_SECONDS
        )
        self._token = token
        # Answers that a service must never get.
        self.surprises: list[str] = []

    def close(self) -> None:
        self._connection.close()

    def post(self, traffic: Traffic, sample: Sample) -> Answer:
        """Ask for one notification."""
        status, answer = self._call("POST", PATH, traffic.body(sample), "application/json")
        return self._read(sample.number, Way.SINGLE, status, answer)

    def post_many(self, traffic: Traffic, samples: Sequence[Sample]) -> list[Answer]:
        """Ask for many with one call, a line for each."""
        lines = b"\n".join(traffic.body(each) for each in samples)
        status, answer = self._call("POST", f"{PATH}/bulk", lines, "application/x-ndjson")
        items = answer.get("items", [])
        if status != 202 or len(items) != len(samples):
            self.surprises.append(f"{status} to a bulk of {len(samples)}")
            return []
        return [
            self._read(each.number, Way.BULK, 400 if "errors" in item else 202, item)
            for each, item in zip(samples, items, strict=True)
        ]

    def cancel(self, id_: str) -> bool:
        """Cancel a notification; False if it is being sent, or was."""
        status, _ = self._call("DELETE", f"{PATH}/{id_}")
        if status not in (204, 409):
            self.surprises.append(f"{status} to DELETE")
        return status == 204

    def _read(self, number: int, way: Way, status: int, answer: dict[str, Any]) -> Answer:
        if status == 202:
            return Answer(number, way, answer["id"], bool(answer.get("duplicate")))
        if status != 400:
            self.surprises.append(f"{status} to request {number + 1}")
        errors = answer.get("errors") or [
            {"message": str(answer.get("code", status)).replace("_", " ")}
        ]
        return Answer(number, way, reasons=tuple(map(reason_of, errors)))

    def _call(
        self, method: str, path: str, body: bytes = b"", kind: str = ""
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token}"}
        if kind:
            headers["Content-Type"] = kind
        self._connection.request(method, path, body, headers)
        with self._connection.getresponse() as response:
            text = response.read()
        found = json.loads(text) if text else {}
        return response.status, found if isinstance(found, dict) else {}
