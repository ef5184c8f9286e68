"""Templates, suppressions and parked requests."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin
from django.db.models import F, Func, IntegerField, QuerySet
from django.http import HttpRequest
from django.template import TemplateSyntaxError
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.formats import column, time_column
from delayed_queue.admin.operations import Call
from delayed_queue.admin.rows import is_id
from delayed_queue.notifications.admin.base import APP, ServiceOperation, ShownOnly
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.managing import suppress
from delayed_queue.notifications.models import ParkedRequest, Suppression, Template
from delayed_queue.notifications.recipients import check_category, problem_with
from delayed_queue.notifications.rendering import compiled

WRITTEN: Final = ("name", "channel", "subject", "body", "html", "category", "is_transactional")
TEXTS: Final = ("body", "html")
MAX_SHOWN: Final = 20_000
_LINE: Final = forms.TextInput(attrs={"class": "vTextField"})
_PROBLEM: Final = _("It %(problem)s.")


class CategoryForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable at run time
    """Checks the category."""

    def clean_category(self) -> str:
        category: str = self.cleaned_data["category"]
        if problem := check_category(category):
            raise forms.ValidationError(_PROBLEM % {"problem": problem})
        return category


class TemplateForm(CategoryForm):
    """Refuses templates that do not compile."""

    class Meta:
        model = Template
        fields = WRITTEN
        labels = {"html": "HTML"}
        widgets = {"subject": _LINE}

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        # As browsers send them; an SMS would pay for each carriage return.
        cleaned |= {name: str(cleaned.get(name) or "").replace("\r\n", "\n") for name in TEXTS}
        if not self.errors:
            try:
                compiled(Template(**cleaned))
            except TemplateSyntaxError as error:
                raise forms.ValidationError(
                    _("It does not compile: %(error)s") % {"error": error}
                ) from error
        return cleaned


class SuppressionForm(CategoryForm):
    """Takes a recipient, and stores its hash."""

    recipient = forms.CharField(
        max_length=2048, help_text=_("Only its hash is kept."), widget=_LINE
    )

    class Meta:
        model = Suppression
        fields = ["channel", "recipient", "category", "reason"]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        channel, recipient = cleaned.get("channel"), cleaned.get("recipient")
        if channel and recipient and (problem := problem_with(channel, recipient)):
            raise forms.ValidationError({"recipient": _PROBLEM % {"problem": problem}})
        return cleaned


@admin.register(Template)
class TemplateAdmin(ShownOnly):
    """The last version of a name and channel counts."""

    form = TemplateForm
    list_heading = _("Templates")
    list_display = ("name", "channel", "version", "subject", "category", "created_at")
    list_filter = ("channel",)
    search_fields = ("name",)
    add_fields = WRITTEN
    readonly_fields = (
        "name", "channel", "version", "subject", "body_shown", "html_shown", "category",
        "is_transactional", "created_at",
    )  # fmt: skip
    has_add_permission: Any = admin.ModelAdmin.has_add_permission
    body_shown = column(_("body"), lambda row: formats.block(row.body))
    html_shown = column(_("HTML"), lambda row: row.html and formats.block(row.html))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        add_version(obj)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Start with the version that is to have a successor: ``?from=`` and its number."""
        number = request.GET.get("from", "")
        found = Template.objects.filter(pk=int(number)).first() if is_id(number) else None
        return {name: getattr(found, name) for name in WRITTEN} if found else {}


@admin.register(Suppression)
class SuppressionAdmin(ShownOnly):
    """Newest first; the recipients are stored as hashes."""

    form = SuppressionForm
    list_heading = _("Suppressions")
    list_display = ("id", "channel", "category_column", "reason", "created_at")
    actions = ()
    add_fields = ("recipient", "channel", "category", "reason")
    readonly_fields = ("channel", "category", "reason", "created_at")
    has_add_permission: Any = admin.ModelAdmin.has_add_permission
    has_delete_permission = admin.ModelAdmin.has_delete_permission
    category_column = column(_("category"), lambda row: row.category or _("everything"))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Add it, or give an existing one another reason."""
        names = ("channel", "recipient", "category", "reason")
        obj.pk = suppress(*(form.cleaned_data[each] for each in names)).pk


class RetryParked(ServiceOperation):
    """Accepts requests that are valid by now, for example for a template that was missing."""

    name, label, past = "retry", _("Accept again"), _("Accepted")
    permission = f"{APP}.retry_parkedrequest"
    noun = ngettext_lazy("%(count)s request", "%(count)s requests", "count")
    refusal = _("because it is still invalid")

    def act(self, row: Any, call: Call) -> bool:
        # Imported on first use: most pages need no types of requests.
        from delayed_queue.notifications.parking import retry_parked

        return retry_parked(row.pk)


@admin.register(ParkedRequest)
class ParkedRequestAdmin(ShownOnly):
    """The newest first; one that is parked again keeps its place."""

    list_heading = _("Parked requests")
    list_display = ("reason", "origin", "tenant", "times", "size_column", "parked_column")
    actions = ()
    operations = (RetryParked(),)
    readonly_fields = (
        "reason", "errors_shown", "origin", "tenant", "times", "message_id", "content_type",
        "parked_column", "body_shown",
    )  # fmt: skip
    guarded: ClassVar = {"body_shown": f"{APP}.view_parked_body"}
    has_delete_permission = admin.ModelAdmin.has_delete_permission

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        size = Func(F("body"), function="octet_length", output_field=IntegerField())
        rows: QuerySet[Any] = super().get_queryset(request).annotate(size=size)
        return rows.defer("body")

    size_column = column(
        _("size"), lambda row: _("%(size)s bytes") % {"size": formats.number(row.size)}
    )
    parked_column = time_column(_("last parked"), "parked_at")

    @admin.display(description=_("errors"))
    def errors_shown(self, row: ParkedRequest) -> SafeString:
        items = ((each["path"] or _("the message"), each["message"]) for each in row.errors)
        lines = format_html_join("", "<li><code>{}</code> {}</li>", items)
        return format_html('<ul class="nt-errors">{}</ul>', lines)

    @admin.display(description=_("body"))
    def body_shown(self, row: Any) -> SafeString:
        text = bytes(row.body[:MAX_SHOWN]).decode("utf-8", "backslashreplace")
        return formats.block(text.replace("\x00", "\\x00"))
