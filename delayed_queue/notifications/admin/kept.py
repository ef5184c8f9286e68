"""Templates, suppressions and parked requests."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin
from django.db.models import F, Func, IntegerField, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.template import TemplateSyntaxError
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.formats import column
from delayed_queue.admin.operations import Call, Report
from delayed_queue.notifications.admin.base import CountedOperation, ShownOnly, may
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.managing import suppress
from delayed_queue.notifications.models import ParkedRequest, Suppression, Template
from delayed_queue.notifications.recipients import check_category, problem_with
from delayed_queue.notifications.rendering import compiled

WRITTEN: Final = ["name", "channel", "subject", "body", "html", "category"]
TEXTS: Final = ("body", "html")


class TemplateForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable at run time
    """Refuses templates that do not compile."""

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
    body_shown = column(_("body"), lambda row: formats.block(row.body))
    html_shown = column(_("HTML"), lambda row: row.html and formats.block(row.html))

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
    """Newest first; the recipients are stored as hashes."""

    form = SuppressionForm
    list_heading = _("Suppressions")
    list_display = ("id", "channel", "category_column", "reason", "created_at")
    ordering = ("-id",)
    actions = ()
    category_column = column(_("category"), lambda row: row.category or _("everything"))

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


MAX_SHOWN: Final = 20_000


class RetryParked(CountedOperation):
    """Accepts requests that are valid by now, for example for a template that was missing."""

    name, label = "retry_selected", _("Accepted again")
    permission = "delayed_queue_notifications.retry_parkedrequest"
    changed_text = _("Accepted: %(number)s.")
    skipped_text = _("Still refused: %(number)s.")

    def change(self, row: Any, call: Call, report: Report) -> Any:
        # Imported on first use: most pages need no types of requests.
        from delayed_queue.notifications.parking import retry_parked

        return retry_parked(row.pk)

    def audit(self, row: Any, call: Call) -> str:
        return f"accepted parked request {row.pk}"


@admin.register(ParkedRequest)
class ParkedRequestAdmin(ShownOnly):
    """The latest first."""

    list_heading = _("Parked requests")
    list_display = ("reason", "origin", "tenant", "times_column", "size_column", "parked_column")
    ordering = ("-parked_at", "-id")
    actions = ()
    operations = (RetryParked(),)
    readonly_fields = (
        "reason", "errors_shown", "origin", "tenant", "times_column", "message_id", "content_type",
        "parked_column", "body_shown",
    )  # fmt: skip

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_parkedrequest")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        size = Func(F("body"), function="octet_length", output_field=IntegerField())
        rows: QuerySet[Any] = super().get_queryset(request).annotate(size=size, read_at=Now())
        return rows.defer("body")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.shows_body = may(request, "view_parked_body")
        return found

    times_column = column(_("times"), lambda row: formats.number(row.times))
    size_column = column(
        _("size"), lambda row: _("%(size)s bytes") % {"size": formats.number(row.size)}
    )
    parked_column = column(_("last parked"), lambda row: formats.since(row.parked_at, row.read_at))

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
