"""An operator's actions on rows: fenced by what was seen, in one transaction with their audit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ValidationError
from django.db import models, router, transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, override

from delayed_queue.admin.formats import printable
from delayed_queue.admin.lists import is_id
from delayed_queue.conf import get_settings
from delayed_queue.db.wakeups import channel_of
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.models import Message, MessageManager
from delayed_queue.retries import parse_duration, parse_rate


@contextmanager
def reasons() -> Iterator[None]:
    """Turn a refusal of the library into one of the field."""
    try:
        yield
    except DelayedQueueError as error:
        raise ValidationError(printable(str(error))) from error


class _TextField(forms.CharField):
    """A short text, or none."""

    longest = 20

    def __init__(self, label: Any, help_text: Any = "") -> None:
        super().__init__(
            label=label,
            max_length=self.longest,
            required=False,
            empty_value=None,
            help_text=help_text,
        )


class RateField(_TextField):
    """A rate as it is written, or none."""

    longest = 12

    def clean(self, value: Any) -> Any:
        rate = super().clean(value)
        with reasons():
            if rate is not None:
                parse_rate(rate)
        return rate


class DurationField(_TextField):
    """A time as handlers write it, ``30m`` or ``2d``, or none."""

    def clean(self, value: Any) -> timedelta | None:
        text = super().clean(value)
        with reasons():
            return None if text is None else parse_duration(text)


class ReasonForm(forms.Form):
    """The reason for rejecting messages; kept with the dead letter."""

    reason = forms.CharField(
        label=_("Reason"), max_length=500, widget=forms.Textarea(attrs={"rows": 3})
    )


GONE: Final = _("no longer there")
BUSY: Final = _("locked by another transaction; try again")
# How many of what a report is about.
MESSAGES: Final = ngettext_lazy("%(count)s message", "%(count)s messages", "count")
LETTERS: Final = ngettext_lazy("%(count)s dead letter", "%(count)s dead letters", "count")
GROUPS: Final = ngettext_lazy("%(count)s group", "%(count)s groups", "count")
QUEUES: Final = ngettext_lazy("%(count)s queue", "%(count)s queues", "count")
_MAX_WAIT: Final = 2000  # milliseconds
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Call:
    """One request to change rows: which, as seen when, on whose behalf."""

    queryset: models.QuerySet[Any]
    tokens: Sequence[str]
    user: Any
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def using(self) -> str:
        """The alias that the model is written to; ``.db`` alone may be a read replica."""
        return self.queryset.select_for_update().db

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open the transaction that holds both the change and its audit.

        Where the audit is kept in another database it commits first: a failure between the
        two leaves an entry for something that did not happen, never the reverse.
        """
        with (
            transaction.atomic(using=self.using),
            transaction.atomic(using=_log_alias(), savepoint=False),
        ):
            messages: MessageManager[Message] = Message.objects
            messages.limit_waits(_MAX_WAIT, using=self.using)
            yield


@dataclass(slots=True)
class Report:
    """The results of an action on the selected rows, in sentences for the operator."""

    past: Any
    noun: Any = MESSAGES
    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)

    def leave(self, why: Any, name: Any) -> None:
        self.left.setdefault(str(why), []).append(str(name))

    def success(self) -> str:
        if not self.changed:
            return ""
        said = _("%(done)s %(what)s: %(names)s.") % self._facts(self.changed, done=self.past)
        return " ".join([said, *self.notes])

    def warnings(self) -> list[str]:
        said = _("Skipped %(what)s, %(why)s: %(names)s.")
        return [said % self._facts(names, why=why) for why, names in self.left.items()]

    def _facts(self, names: list[str], **more: Any) -> dict[str, Any]:
        return {"what": self.noun % {"count": len(names)}, "names": _names(names), **more}


def _names(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    shown = ", ".join(names[:_MAX_NAMED])
    facts = {"names": shown, "number": more}
    return _("%(names)s and %(number)s more") % facts if more > 0 else shown


class Operation:
    """One thing to do to rows; the subclasses are what the lists and detail pages offer."""

    name: str
    label: Any
    help: Any
    permission: str
    # What its report says was done.
    past: Any = ""
    # What is asked before it is done; without it, it is done at once.
    warning: Any = ""
    is_destructive = False
    form_class: type[forms.Form] = forms.Form

    @property
    def recorded(self) -> str:
        """What was done, as the audit has it."""
        return english(self.past)

    def fits(self, row: Any) -> bool:
        """Return whether it makes sense to offer this for the row."""
        return True

    def form(self, data: Any, username: str) -> forms.Form:
        return self.form_class(data)

    def run(self, call: Call) -> Report:
        """Change what can be changed and record it, in one transaction."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the audit."""

    row: Any
    message: str


def record(call: Call, flag: int, entries: Iterable[Entry]) -> None:
    """Write the audit: who, what, which row; never a payload."""
    using = _log_alias()
    model = call.queryset.model
    content_type = ContentType.objects.db_manager(using).get_for_model(model)
    LogEntry.objects.using(using).bulk_create(
        LogEntry(
            user_id=call.user.pk,
            content_type_id=content_type.pk,
            object_id=str(entry.row.id),
            object_repr=str(entry.row)[:200],
            action_flag=flag,
            change_message=entry.message,
        )
        for entry in entries
    )


def english(text: Any) -> str:
    """Return the text as the audit has it: in one language, whichever its operator reads."""
    with override(None):
        return str(text)


def _log_alias() -> str:
    return router.db_for_write(LogEntry)


def parse_ids(tokens: Any) -> list[int]:
    """Return the ids among the tokens of rows that never change, whose id is fence enough."""
    return sorted({int(token) for token in tokens if is_id(token)})


def lock(call: Call, ids: Sequence[int], report: Report) -> list[Any]:
    """Lock and return those rows, in id order; report the ones that cannot be had.

    Without waiting: a handler may hold a message in its transaction for as long as it runs.
    """
    found = call.queryset.using(call.using).filter(id__in=ids)
    rows = list(found.select_for_update(skip_locked=True).order_by("id"))
    missing = sorted(set(ids) - {row.id for row in rows})
    if missing:
        held = dict(found.filter(id__in=missing).values_list("id", "key"))
        for each in missing:
            report.leave(BUSY if each in held else GONE, held.get(each) or unnamed(each))
    return rows


def unnamed(id_: int) -> str:
    """Return what a row is called that is there no more."""
    return _("id %(id)s") % {"id": id_}


class Switch(Operation):
    """Something done to each of the chosen rows."""

    noun: Any
    left: Any = ""

    def run(self, call: Call) -> Report:
        report = Report(self.past, self.noun)
        with call.transaction():
            rows = lock(call, parse_ids(call.tokens), report)
            changed = [row for row in rows if self._change(row, call, report)]
            report.changed += [str(row) for row in changed]
            record(call, CHANGE, [Entry(row, self.audit(call)) for row in changed])
        for row in changed:
            self.follow(row, call, report)
        return report

    def _change(self, row: Any, call: Call, report: Report) -> bool:
        if self.change(row, call, report):
            return True
        report.leave(self.left, str(row))
        return False

    def change(self, row: Any, call: Call, report: Report) -> bool:
        """Change the row, within the transaction; return False if it is so already."""
        raise NotImplementedError

    def audit(self, call: Call) -> str:
        return f"{self.recorded}."

    def follow(self, row: Any, call: Call, report: Report) -> None:
        """Do what must wait until the change has committed."""


def wake(kinds: Collection[str], using: str) -> None:
    """Tell sleeping workers of the kinds to look, once the change is there to be seen.

    After the commit and by itself, because NOTIFY makes the commits of the whole database wait
    for each other; should it fail, workers look at their next interval anyway.
    """
    if not get_settings().NOTIFY:
        return
    for kind in kinds:
        notify = partial(Message.objects.notify, channel_of(kind), using=using)
        transaction.on_commit(notify, using=using, robust=True)


def tell_holders(lease_ids: Collection[str], using: str) -> None:
    """Cancel the handlers of what is under the leases no more; without, renewals find out."""
    if lease_ids and get_settings().NOTIFY:
        tell = partial(Message.objects.tell_holders, sorted(lease_ids), using=using)
        transaction.on_commit(tell, using=using, robust=True)
