"""What is kept beside notifications: templates, suppressions, and requests that were parked."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import F, Func, IntegerField, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.template import TemplateSyntaxError
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.notifications.admin.base import ShownOnly, may
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.managing import suppress
from delayed_queue.notifications.models import ParkedRequest, Suppression, Template
from delayed_queue.notifications.parking import retry_parked
from delayed_queue.notifications.recipients import problem_with
from delayed_queue.notifications.rendering import compiled
from delayed_queue.notifications.validation import check_category

WRITTEN: Final = ["name", "channel", "subject", "body", "html", "category"]
TEXTS: Final = ("body", "html")


class TemplateForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable at run time
    """Refuses what does not compile."""

    class Meta:
        model = Template
        fields = WRITTEN
        labels = {"html": "HTML"}
        widgets = {"subject": forms.TextInput(attrs={"class": "vTextField"})}

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        # As browsers send them; an SMS would pay for each carriage return.
        cleaned |= {name: str(cleaned.get(name) or "").replace("\r\n", "\n") for name in TEXTS}
        if problem := check_category(cleaned.get("category") or ""):
            self.add_error("category", _("It %(problem)s.") % {"problem": problem})
        if not self.errors:
            try:
                compiled(Template(**cleaned))
            except TemplateSyntaxError as error:
                raise forms.ValidationError(
                    _("It does not compile: %(error)s") % {"error": error}
                ) from error
        return cleaned


@admin.register(Template)
class TemplateAdmin(ShownOnly):
    """The last version of a name and channel counts."""

    form = TemplateForm
    list_heading = _("Templates")
    list_display = ("name", "channel", "version", "subject", "category", "created_at")
    list_filter = ("channel",)
    search_fields = ("name",)
    ordering = ("name", "channel", "-version")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "add_template")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        add_version(obj)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return WRITTEN
        return [
            "name", "channel", "version", "subject", "body_shown", "html_shown", "category",
            "created_at",
        ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [] if obj is None else self.get_fields(request, obj)

    @admin.display(description=_("body"))
    def body_shown(self, row: Template) -> SafeString:
        return formats.block(row.body)

    @admin.display(description=_("HTML"))
    def html_shown(self, row: Template) -> SafeString:
        return formats.block(row.html) if row.html else formats.NOTHING

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Begin with the version that is to have a successor: ``?from=`` and its number."""
        number = request.GET.get("from", "")
        is_number = number.isascii() and number.isdigit() and len(number) < 19
        found = Template.objects.filter(pk=int(number)).first() if is_number else None
        return {name: getattr(found, name) for name in WRITTEN} if found else {}


class SuppressionForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable at run time
    """Takes a recipient, and stores its hash."""

    recipient = forms.CharField(
        max_length=2048,
        help_text=_("Only its hash is kept."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )

    class Meta:
        model = Suppression
        fields = ["channel", "recipient", "category", "reason"]

    def clean_category(self) -> str:
        category: str = self.cleaned_data["category"]
        if problem := check_category(category):
            raise forms.ValidationError(_("The category %(problem)s.") % {"problem": problem})
        return category

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        channel, recipient = cleaned.get("channel"), cleaned.get("recipient")
        if channel and recipient and (problem := problem_with(channel, recipient)):
            raise forms.ValidationError({"recipient": _("It %(problem)s.") % {"problem": problem}})
        return cleaned


@admin.register(Suppression)
class SuppressionAdmin(ShownOnly):
    """Newest first; nobody can read back whom they are about."""

    form = SuppressionForm
    list_heading = _("Suppressions")
    list_display = ("id", "channel", "category_column", "reason", "created_at")
    ordering = ("-id",)

    @admin.display(description=_("category"))
    def category_column(self, row: Suppression) -> str:
        return row.category or str(_("everything"))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "add_suppression")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_suppression")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Add it, or give the one that is there already another reason."""
        values = form.cleaned_data
        kept = suppress(
            values["channel"], values["recipient"], values["category"], values["reason"]
        )
        obj.pk = kept.pk

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = ["channel", "category", "reason"]
        return ["channel", "recipient", *fields[1:]] if obj is None else [*fields, "created_at"]


MAX_SHOWN = 20_000


@admin.register(ParkedRequest)
class ParkedRequestAdmin(ShownOnly):
    """The latest first."""

    list_heading = _("Parked requests")
    list_display = ("reason", "origin", "tenant", "times_column", "size_column", "parked_column")
    ordering = ("-parked_at", "-id")
    actions = ("retry_selected",)
    readonly_fields = (
        "reason", "errors_shown", "origin", "tenant", "times_column", "message_id", "content_type",
        "parked_column", "body_shown",
    )  # fmt: skip

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_parkedrequest")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return may(request, "retry_parkedrequest")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        size = Func(F("body"), function="octet_length", output_field=IntegerField())
        rows: QuerySet[Any] = super().get_queryset(request).annotate(size=size, read_at=Now())
        return rows.defer("body")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.shows_body = may(request, "view_parked_body")
        return found

    @admin.display(description=_("times"))
    def times_column(self, row: ParkedRequest) -> str:
        return formats.number(row.times)

    @admin.display(description=_("size"))
    def size_column(self, row: Any) -> str:
        return str(_("%(size)s bytes") % {"size": formats.number(row.size)})

    @admin.display(description=_("last parked"))
    def parked_column(self, row: Any) -> SafeString:
        return formats.moment(row.parked_at, formats.relative(row.parked_at, row.read_at))

    @admin.display(description=_("errors"))
    def errors_shown(self, row: ParkedRequest) -> SafeString:
        items = ((each["path"] or _("the message"), each["message"]) for each in row.errors)
        lines = format_html_join("", "<li><code>{}</code> {}</li>", items)
        return format_html('<ul class="nt-errors">{}</ul>', lines)

    @admin.display(description=_("body"))
    def body_shown(self, row: Any) -> SafeString:
        if not row.shows_body:
            return formats.quiet(
                _("Hidden: needs the permission delayed_queue_notifications.view_parked_body.")
            )
        text = bytes(row.body[:MAX_SHOWN]).decode("utf-8", "backslashreplace")
        return formats.block(text.replace("\x00", "\\x00"))

    @transaction.atomic
    def _retry(self, request: HttpRequest, pk: int) -> bool:
        if not retry_parked(pk):
            return False
        user: Any = request.user
        rows = [ParkedRequest(pk=pk)]
        message = f"accepted parked request {pk}"
        LogEntry.objects.log_actions(user.pk, rows, CHANGE, message, single_object=True)
        return True

    @admin.action(description=_("Accepted again"), permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Accept those that are valid by now, for a template that was missing, say."""
        if not self.has_retry_permission(request):
            raise PermissionDenied
        chosen = list(queryset.values_list("pk", flat=True))
        accepted = sum(self._retry(request, pk) for pk in chosen)
        said = _("Accepted: %(number)s.") % {"number": accepted}
        self.message_user(request, said, messages.SUCCESS)
        if left := len(chosen) - accepted:
            text = _("Still refused: %(number)s.") % {"number": left}
            self.message_user(request, text, messages.WARNING)
