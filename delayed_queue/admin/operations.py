"""Operations on rows, with fence, transaction, audit and report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ValidationError
from django.db import OperationalError, models, router, transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, override

from delayed_queue.admin.rows import is_id
from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import waited_too_long
from delayed_queue.models import Message, MessageManager
from delayed_queue.queue.base import wake_at_commit

GONE: Final = _("no longer there")
BUSY: Final = _("locked by another transaction; try again")
_HELD: Final = _("Nothing was changed: another transaction holds one of the rows. Try again.")
# Nouns of reports.
MESSAGES: Final = ngettext_lazy("%(count)s message", "%(count)s messages", "count")
QUEUES: Final = ngettext_lazy("%(count)s queue", "%(count)s queues", "count")
_MAX_WAIT: Final = 2000  # milliseconds
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Call:
    """A request to change rows: the rows as shown, the user, and the values of the form."""

    queryset: models.QuerySet[Any]
    tokens: Sequence[str]
    user: Any
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def using(self) -> str:
        """The alias that the model is written to; ``.db`` alone may be a read replica."""
        return self.queryset.select_for_update().db

    @property
    def written(self) -> models.QuerySet[Any]:
        return self.queryset.using(self.using)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open the transaction that holds both the change and its audit.

        Where the audit is in another database it commits first: a failure between the two leaves
        an entry for something that did not happen, never the reverse.
        """
        with (
            transaction.atomic(using=self.using),
            transaction.atomic(using=_log_alias(), savepoint=False),
        ):
            store: MessageManager[Message] = Message.objects
            store.limit_waits(_MAX_WAIT, using=self.using)
            yield


@dataclass(slots=True)
class Report:
    """The outcome of an operation: changed rows and their names, skipped rows by reason."""

    rows: list[Any] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def leave(self, why: Any, name: Any) -> None:
        self.left.setdefault(str(why), []).append(str(name))


class Operation:
    """One thing to do to rows, declared once.

    Lists offer it as an action, pages of a row as a button. With a ``warning`` it needs
    confirmation on a page with the fields of ``form_class``. A subclass defines ``change`` for one
    row, or ``apply`` for several rows in one statement.
    """

    name: str
    label: Any
    permission: str
    help: Any = ""
    warning: Any = ""
    is_destructive = False
    form_class: type[forms.Form] = forms.Form
    # The report: "Released 2 messages: a, b."
    past: Any = ""
    noun: Any = MESSAGES
    changed_text: Any = _("%(done)s %(what)s: %(names)s.")
    skipped_text: Any = _("Skipped %(what)s, %(why)s: %(names)s.")
    # The flag of its entries in the audit.
    flag = CHANGE
    # Each row in a transaction of its own, instead of all rows in one.
    is_separate = False
    # Why a row is skipped for which ``act`` changed nothing.
    refusal: Any = ""
    # The report of an error, for operations that call code of the project.
    failed: Any = ""
    # Wake workers that wait for messages of the rows' kinds; cancel handlers of the rows' leases.
    wakes = False
    ends_lease = False

    def fits(self, row: Any) -> bool:
        """True if the page of the row offers the operation."""
        return True

    def form(self, data: Any, call: Call) -> forms.Form:
        return self.form_class(data)

    def confirmation(self, call: Call, form: Any) -> dict[str, Any]:
        """Return the title, the button and the facts of the confirmation page of a button."""
        raise NotImplementedError

    def next_url(self, model_admin: Any, report: Report) -> str:
        """Return the page to show after the change; empty for the same one."""
        return ""

    def rows(self, call: Call, report: Report) -> list[Any]:
        """Return the rows to change, locked; report those that are gone or have changed."""
        return lock(call, parse_ids(call.tokens), report)

    def change(self, row: Any, call: Call, report: Report) -> Any:
        """Change the row within the transaction; return True, or why it was skipped."""
        return self.act(row, call) or self.refusal

    def act(self, row: Any, call: Call) -> bool:
        """Change the row; return whether anything changed."""
        raise NotImplementedError

    def apply(self, rows: list[Any], call: Call, report: Report) -> Iterator[tuple[Any, Any]]:
        """Change the rows; yield each with True, or why it was skipped."""
        for row in rows:
            yield row, self._attempt(row, call, report)

    def name_of(self, row: Any) -> str:
        """Return the row's name in reports."""
        return str(row.key)

    def audit(self, row: Any, call: Call) -> str:
        """Return the audit's sentence; never a payload."""
        return f"{english(self.past)}."

    def follow(self, row: Any, call: Call, report: Report) -> None:
        """Do what must wait until the change has committed."""

    def run(self, call: Call) -> Report:
        """Change what can be changed and record it."""
        report = Report()
        for part in self.parts(call):
            try:
                self._run(part, report)
            except OperationalError as error:
                if not waited_too_long(error):
                    raise
                if self.is_separate:
                    report.leave(BUSY, part.tokens[0])
                else:
                    report.errors.append(str(_HELD))
        return report

    def parts(self, call: Call) -> Iterable[Call]:
        """Return a call for each transaction."""
        return (
            [replace(call, tokens=[each]) for each in call.tokens] if self.is_separate else [call]
        )

    def answers(self, report: Report) -> Iterator[tuple[int, str]]:
        """Yield the report's sentences, each with its level for Django's messages."""
        if report.changed:
            said = self.changed_text % self._facts(report.changed, done=self.past)
            yield messages.SUCCESS, " ".join([said, *report.notes])
        for why, names in report.left.items():
            yield messages.WARNING, self.skipped_text % self._facts(names, why=why)
        for error in report.errors:
            yield messages.ERROR, error

    def _run(self, call: Call, report: Report) -> None:
        changed = []
        with call.transaction():
            for row, outcome in self.apply(self.rows(call, report), call, report):
                if outcome is True:
                    changed.append(row)
                else:
                    report.leave(outcome, self.name_of(row))
            report.rows += changed
            report.changed += map(self.name_of, changed)
            _record(call, self.flag, [(row, self.audit(row, call)) for row in changed])
            self._notify(changed, call.using)
        for row in changed:
            self.follow(row, call, report)

    def _attempt(self, row: Any, call: Call, report: Report) -> Any:
        """Change the row; what code of the project did before it raised is undone."""
        if not self.failed:
            return self.change(row, call, report)
        try:
            with transaction.atomic(using=call.using):
                return self.change(row, call, report)
        except Exception as error:
            return self.failed % {"error": f"{type(error).__name__}: {error}"}

    def _facts(self, names: list[str], **more: Any) -> dict[str, Any]:
        what = self.noun % {"count": len(names)}
        return {"number": len(names), "what": what, "names": _listed(names), **more}

    def _notify(self, rows: list[Any], using: str) -> None:
        if self.wakes:
            wake_at_commit({row.kind for row in rows}, using)
        leases = {row.lease_id for row in rows if row.lease_id} if self.ends_lease else ()
        # Without NOTIFY, renewals find out.
        if leases and get_settings().NOTIFY:
            tell = partial(Message.objects.tell_holders, sorted(leases), using=using)
            transaction.on_commit(tell, using=using, robust=True)


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    shown = ", ".join(names[:_MAX_NAMED])
    facts = {"names": shown, "number": more}
    return _("%(names)s and %(number)s more") % facts if more > 0 else shown


def english(text: Any) -> str:
    """Return the text for the audit, which is in English for every reader."""
    with override(None):
        return str(text)


def parse_ids(tokens: Iterable[str]) -> list[int]:
    """Return the ids among the tokens of rows that are fenced by their id alone."""
    return sorted({int(token) for token in tokens if is_id(token)})


def primary_keys(call: Call) -> list[str]:
    """Return the tokens that can be a primary key of the model."""
    field = call.queryset.model._meta.pk

    def is_valid(token: str) -> bool:
        try:
            field.to_python(token)
        except ValidationError:
            return False
        return True

    return list(filter(is_valid, call.tokens))


def lock(call: Call, ids: Sequence[int], report: Report) -> list[Any]:
    """Lock and return those rows in id order; report those that are gone or locked.

    It does not wait: a handler may hold a message in its transaction for as long as it runs.
    """
    found = call.written.filter(id__in=ids)
    rows = list(found.select_for_update(skip_locked=True).order_by("id"))
    if missing := sorted(set(ids) - {row.id for row in rows}):
        held = dict(found.filter(id__in=missing).values_list("id", "key"))
        for each in missing:
            report.leave(BUSY if each in held else GONE, held.get(each) or unnamed(each))
    return rows


def unnamed(id_: int) -> str:
    """Return the name of a row that no longer exists."""
    return _("id %(id)s") % {"id": id_}


def _record(call: Call, flag: int, entries: list[tuple[Any, str]]) -> None:
    """Write the audit: who, what, which row."""
    using = _log_alias()
    content_type = ContentType.objects.db_manager(using).get_for_model(call.queryset.model)
    LogEntry.objects.using(using).bulk_create(
        LogEntry(
            user_id=call.user.pk, content_type_id=content_type.pk, object_id=str(row.pk),
            object_repr=str(row)[:200], action_flag=flag, change_message=message,
        )
        for row, message in entries
    )  # fmt: skip


def _log_alias() -> str:
    return router.db_for_write(LogEntry)
