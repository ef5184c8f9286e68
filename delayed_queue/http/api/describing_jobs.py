"""The OpenAPI description of jobs as they are sent: read by hand, so described by hand."""

from __future__ import annotations

from typing import Any, Final

from delayed_queue.http.jobs.idempotency import MAX_LENGTH
from delayed_queue.http.jobs.jobs import MAX_DELAY, MAX_URL_LENGTH
from delayed_queue.http.jobs.kinds import MAX_TOPIC_LENGTH, TOPIC_PATTERN
from delayed_queue.http.jobs.ladders import DEFAULT_LADDER, MAX_RETRY, MAX_STEPS, MAX_TTR
from delayed_queue.messages import MAX_KEY_LENGTH

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_DURATION: Final = r"[0-9]{1,4}(ms|s|m|h)"
_STEP: Final = {"type": "string", "pattern": f"^{_DURATION}$", "examples": ["15s", "3m"]}

JOB: Final[dict[str, Any]] = {
    "type": "object",
    "title": "NewJob",
    "required": ["jobId", "topic"],
    "additionalProperties": False,
    "properties": {
        "jobId": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY_LENGTH,
            "pattern": r"^[^/\x00-\x1f\x7f-\x9f]+$",
            "description": "The caller's name for the job, unique in its topic.",
        },
        "topic": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_TOPIC_LENGTH,
            "pattern": f"^{TOPIC_PATTERN}$",
        },
        "delay": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": MAX_DELAY.total_seconds(),
            "description": "Seconds from now, by the database's clock. Absent is 0.",
        },
        "runAt": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "Instead of delay: an instant with its zone, at most 10 years ahead.",
        },
        "body": {"description": "Any JSON; it is delivered in canonical form."},
        "retry": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": MAX_RETRY,
            "description": "Failures so far: where on the ladder the job begins.",
        },
        "url": {
            "type": ["string", "null"],
            "format": "uri",
            "maxLength": MAX_URL_LENGTH,
            "description": "What is called when the job is due. Without it the job is popped.",
        },
        "ttr": {
            "type": ["number", "null"],
            "minimum": 1,
            "maximum": MAX_TTR.total_seconds(),
            "description": "Seconds that a consumer may hold the job.",
        },
        "ladder": {
            "description": f"The wait after each failure; else the topic's, or {DEFAULT_LADDER}.",
            "anyOf": [
                {"type": "string", "pattern": f"^{_DURATION}( {_DURATION}){{0,9}}$"},
                {"type": "array", "items": _STEP, "minItems": 1, "maxItems": MAX_STEPS},
                {"type": "null"},
            ],
        },
        "jitter": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": 1,
            "description": "0.2 spreads each wait over ± 20 %.",
        },
    },
}  # fmt: skip

ADDING: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": JOB}}},
    "parameters": [
        {
            "in": "header",
            "name": IDEMPOTENCY_KEY,
            "required": False,
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH,
                       "pattern": "^[ -~]+$"},
            "description": "The same request with the same key is answered as the first one was.",
        }
    ],
}  # fmt: skip

BULK: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "array", "items": JOB}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}
