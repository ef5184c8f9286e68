"""Bulk runs, which put back or delete the dead jobs of a failure."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from delayed_queue.exceptions import InvalidConfiguration, NoSuchLetters, RunInProgress
from delayed_queue.http.api.auth import ApiRequest, demand, reaches
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.parameters import Id, Limit, Time, shown
from delayed_queue.http.api.problems import Problem, missing
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.dead import find_run, latest_runs
from delayed_queue.http.jobs.kinds import parse_kind
from delayed_queue.http.jobs.requests import Instant
from delayed_queue.http.reading import between, matching, printable
from delayed_queue.models import BulkRun
from delayed_queue.queue.bulk import (
    MAX_CANARY,
    MAX_LETTERS,
    MAX_PACE,
    MAX_SPREAD,
    PREVIEW_CAP,
    REDRIVE,
    BulkPlan,
    switch_run,
)

calls: Final = Endpoints("dead jobs")
RunSwitch = Literal["pause", "resume", "cancel"]
_Text = Annotated[str, printable(200)]
_Fingerprint = Annotated[str, matching(r"^[0-9a-f]{16}\Z", "Send 16 hexadecimal digits.", 16)]
_Pace = Annotated[int, between(1, MAX_PACE)]
_Spread = Annotated[int, between(1, int(MAX_SPREAD.total_seconds()))]
_Letters = Annotated[int, between(1, MAX_LETTERS)]


class BulkRunRequest(Struct, rename="camel", forbid_unknown_fields=True):
    """A bulk run to start, over a failure as the list of failures names it."""

    action: Literal["redrive", "drop"]
    queue: Annotated[str, printable(100)]
    group: _Fingerprint
    reason: _Text | None = None
    key_from: _Text | None = None
    key_before: _Text | None = None
    since: Instant | None = None
    until: Instant | None = None
    pace: _Pace | None = None
    over_seconds: _Spread | None = None
    limit: _Letters | None = None
    canary: Annotated[int, between(0, MAX_CANARY)] = 0
    canary_deaths: Annotated[int, between(1, MAX_CANARY)] = 1
    why: Annotated[str, Meta(max_length=500)] = ""


class BulkRunReply(Struct, rename="camel"):
    """A bulk run and its progress; ``isCapped``: there may be more left."""

    pk: int = field(name="id")
    action: str
    kind: str = field(name="queue")
    fingerprint: str | None = field(name="group")
    state: str
    note: str
    total: int
    is_total_cut: bool = field(name="isCapped")
    done: int
    skipped: int
    started_by: str
    why: str
    created_at: Time = field(name="startedAt")
    ended_at: Time | None


class BulkRuns(Struct):
    """Bulk runs, the newest first."""

    items: list[BulkRunReply]


class PreviewReply(Struct, rename="camel"):
    """The number of dead jobs that a bulk run would take; ``isCapped``: there may be more."""

    total: int
    is_capped: bool


class RunsQuery(Struct, forbid_unknown_fields=True):
    """The largest number of runs to list."""

    limit: Limit = 20


@calls.get("dead/runs", "read")
def list_runs(request: ApiRequest, query: RunsQuery) -> BulkRuns:
    """List the bulk runs over what the token covers, the newest first."""
    using = api_settings().DATABASE
    found = latest_runs(query.limit, covers=reaches(request.auth), using=using)
    return BulkRuns([_shown(each) for each in found])


@calls.post("dead/runs", "manage", status=202, errors=[404, 409])
def begin_run(request: ApiRequest, body: BulkRunRequest) -> BulkRunReply:
    """Start a run that workers do at a pace, or spread over a time; a canary may go first.

    It takes the jobs that are dead now. 404 when the failure has none, 409 while another run is
    over it.
    """
    using, plan = api_settings().DATABASE, _plan_of(request, body)
    try:
        run_id = plan.start(by=request.auth.name, why=body.why, using=using)
    except NoSuchLetters:
        raise missing("failure") from None
    except RunInProgress as error:
        raise Problem(409, "run_in_progress", detail=str(error)) from None
    return _shown(_run(request, "manage", run_id))


@calls.post("dead/runs/preview", "manage", errors=[404])
def preview_run(request: ApiRequest, body: BulkRunRequest) -> PreviewReply:
    """Count the jobs, up to a limit; nothing is changed."""
    found = _plan_of(request, body).preview(api_settings().DATABASE)
    return PreviewReply(found.meant, found.seen == PREVIEW_CAP)


def _plan_of(request: ApiRequest, body: BulkRunRequest) -> BulkPlan:
    place = parse_kind(body.queue)
    if place is None:
        raise missing("failure")
    demand(request, "manage" if body.action == REDRIVE else "delete", place.topic)
    over = None if body.over_seconds is None else timedelta(seconds=body.over_seconds)
    try:
        return BulkPlan(
            body.action, body.queue, body.group, reason=body.reason, key_from=body.key_from,
            key_before=body.key_before, since=body.since, until=body.until, pace=body.pace,
            over=over, limit=body.limit, canary=body.canary, canary_deaths=body.canary_deaths,
        )  # fmt: skip
    except InvalidConfiguration as error:
        raise Problem(400, "invalid_request", "Invalid request", str(error)) from None


@calls.get("dead/runs/<run_id>", "read", errors=[404])
def read_run(request: ApiRequest, run_id: Id) -> BulkRunReply:
    """Return a run's state and progress."""
    return _shown(_run(request, "read", run_id))


@calls.post("dead/runs/<run_id>/<switch>", "manage", errors=[404, 409])
def switch(request: ApiRequest, run_id: Id, switch: RunSwitch) -> BulkRunReply:
    """Pause, resume or cancel a bulk run; 409 when its state does not allow that."""
    run = _run(request, "manage", run_id)
    if not switch_run(run_id, switch, using=api_settings().DATABASE):
        raise Problem(409, "wrong_state", detail=f"The run is {run.state}.")
    return _shown(_run(request, "manage", run_id))


def _run(request: ApiRequest, verb: str, run_id: int) -> BulkRun:
    """Return the run; one over jobs that the token does not cover is missing."""
    covers = reaches(request.auth)
    run = find_run(run_id, covers=covers, using=api_settings().DATABASE)
    if run is None or not request.auth.may(verb):
        raise missing("run")
    return run


def _shown(run: BulkRun) -> BulkRunReply:
    return shown(run, BulkRunReply)
