"""A client of the job API, as another service would write it: the standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

TIMEOUT_SECONDS = 70.0


class ApiError(Exception):
    """The API answered with a problem."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('title', '')}: {problem.get('detail', '')}")
        self.status = status
        self.problem = problem


class JobsClient:
    """The calls of the job API; each returns the answer's JSON, or raises ApiError."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address.rstrip("/")
        self._token = token

    def add(self, **job: Any) -> Any:
        return self._call("POST", "/v1/jobs", job)

    def add_many(self, jobs: list[dict[str, Any]]) -> Any:
        return self._call("POST", "/v1/jobs/bulk", jobs)

    def find(self, topic: str, job_id: str) -> Any:
        return self._call("GET", _job(topic, job_id))

    def delete(self, topic: str, job_id: str) -> bool:
        """Delete the job; False if there is none any more."""
        try:
            self._call("DELETE", _job(topic, job_id))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def pop(self, topic: str, *, count: int = 1, timeout: int = 0, ttr: int = 30) -> Any:
        """Return leased jobs; an empty list if none came in time."""
        query = urlencode({"count": count, "timeout": timeout, "ttr": ttr})
        return self._call("POST", f"/v1/topics/{quote(topic)}/pop?{query}") or []

    def finish(self, topic: str, job: dict[str, Any]) -> None:
        self._lease_call("finish", topic, job)

    def release(self, topic: str, job: dict[str, Any], delay: float) -> None:
        self._lease_call("release", topic, job, delay=delay)

    def kick(self, topic: str, limit: int) -> int:
        answer = self._call("POST", f"/v1/topics/{quote(topic)}/kick?limit={limit}")
        return int(answer["kicked"])

    def attempts(self, topic: str, job_id: str) -> Any:
        query = urlencode({"topic": topic, "job": job_id})
        return self._call("GET", f"/v1/attempts?{query}")

    def _lease_call(self, verb: str, topic: str, job: dict[str, Any], **more: Any) -> None:
        path = f"{_job(topic, job['jobId'])}/{verb}"
        self._call("POST", path, {"leaseToken": job["leaseToken"], **more})

    def _call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 # our own address
            self._address + path, data, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, _problem(error.read())) from None
        return json.loads(text) if text else None


def _job(topic: str, job_id: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/jobs/{quote(job_id, safe='')}"


def _problem(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"title": text[:200].decode(errors="replace")}
    return found if isinstance(found, dict) else {"title": str(found)}
