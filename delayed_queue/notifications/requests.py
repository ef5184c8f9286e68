"""Requests: their fields by type, as REST, the broker and imports send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from delayed_queue.http.callbacks.guard import MAX_URL
from delayed_queue.http.jobs.requests import URL_PATTERN
from delayed_queue.http.reading import CONTROLS, matching
from delayed_queue.notifications.models import Channel, Priority
from delayed_queue.notifications.recipients import CATEGORY, MAX_CATEGORY, normal

MAX_SUBJECT: Final = 255
MAX_KEY: Final = 200
_LINE: Final = rf"^[^{CONTROLS}\u2028\u2029]*\Z"
_LINE_RULE: Final = "It must be one line without control characters."
# Without parts of their own, which a mail server would read as parts of the mail.
_MEDIA: Final = r"^(?!multipart/|message/)[a-z0-9]+/[a-z0-9][a-z0-9.+-]*\Z"
_MEDIA_RULE: Final = "It must be a media type such as application/pdf."
_CATEGORY_RULE: Final = "It must consist of a-z, 0-9, '.', '_' and '-'."

_ADDRESS: Final = "An email address, a number in E.164 form, or an http(s) URL."
_Recipient = Annotated[str, Meta(min_length=1, max_length=MAX_URL, description=_ADDRESS)]
_Category = Annotated[str, matching(CATEGORY, _CATEGORY_RULE, MAX_CATEGORY, least=0)]
_Template = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9_-]*\Z", "It is not the name of a template.", 100,
        "The name of a template, instead of subject and body.",
    ),
]  # fmt: skip
_Version = Annotated[int, Meta(ge=1, le=2**31 - 1, description="Default: the latest version.")]
_Subject = Annotated[
    str, matching(_LINE, _LINE_RULE, MAX_SUBJECT, "The subject of an email.", least=0)
]
_Html = Annotated[str, Meta(description="The HTML version of an email, in addition to the text.")]
_Instant = Meta(max_length=64, extra_json_schema={"format": "date-time"})
_Zone = Annotated[str, Meta(max_length=64, description="An IANA name, such as Asia/Kolkata.")]
_Clock = Annotated[
    str, matching(r"^([01][0-9]|2[0-3]):[0-5][0-9]\Z", "It must be a time such as 09:00.", 5)
]


class LocalTime(Struct, forbid_unknown_fields=True):
    """The next time that the clocks of a zone show this time."""

    local: _Clock
    zone: _Zone


_SendAt = Annotated[
    Annotated[str, _Instant] | LocalTime,
    Meta(description="Send at this time or later. Default: at once."),
]
_Quiet = Annotated[
    list[_Clock],
    Meta(min_length=2, max_length=2, description="Start and end of hours without notifications."),
]
_ExpiresAt = Annotated[
    str,
    _Instant,
    Meta(description="Do not send after this time; the notification becomes EXPIRED."),
]
_Key = Annotated[str, matching(_LINE, _LINE_RULE, MAX_KEY)]
_Url = Annotated[str, Meta(pattern=URL_PATTERN, max_length=MAX_URL)]


class Attachment(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A file of a mail: ``content`` in base64, or a ``url`` that is fetched when it is sent."""

    name: Annotated[
        str, matching(rf"^[^{CONTROLS}\u2028\u2029/\\]+\Z", "It must be the name of a file.", 200)
    ]
    type: Annotated[str, matching(_MEDIA, _MEDIA_RULE, 100)] | None = None
    content: bytes | None = None
    url: _Url | None = None


class Mail(Struct, rename="camel", omit_defaults=True):
    """Copies, reply address, headers and attachments of a mail, as they are stored."""

    cc: Sequence[str] = ()
    reply_to: str = ""
    headers: Mapping[str, Any] = {}
    attachments: Sequence[Attachment] = ()

    def normalized(self) -> Mail:
        """Return it with addresses as they are sent, each copy once."""
        found = [normal(Channel.EMAIL, each) for each in self.cc]
        cc = tuple({each.lower(): each for each in found}.values())
        reply_to = normal(Channel.EMAIL, self.reply_to) if self.reply_to else ""
        return Mail(cc, reply_to, self.headers, self.attachments)


_MANY: Final = Meta(max_length=20)
_Headers = Annotated[dict[str, Any], Meta(description="Those that MAIL_HEADERS allows.")]


class NotificationRequest(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A notification to send. Null counts as absent, except for the body of a webhook."""

    channel: Channel
    to: _Recipient
    template: _Template | None = None
    template_version: _Version | None = None
    context: Annotated[dict[str, Any], Meta(description="The variables.")] | None = None
    subject: _Subject | None = None
    body: Annotated[Any, Meta(description="Text; for a webhook, any JSON value.")] = None
    html: _Html | None = None
    cc: Annotated[list[_Recipient], _MANY] | None = None
    reply_to: _Recipient | None = None
    headers: _Headers | None = None
    attachments: Annotated[list[Attachment], _MANY] | None = None
    category: _Category | None = None
    priority: Priority | None = Priority.NORMAL
    send_at: _SendAt | None = None
    expires_at: _ExpiresAt | None = None
    zone: _Zone | None = None
    quiet: _Quiet | None = None
    dedupe_key: _Key | None = None
    callback_url: _Url | None = None


class SuppressionRequest(Struct, forbid_unknown_fields=True):
    """A recipient to whom nothing more is sent, in one category or in all."""

    channel: Channel
    to: _Recipient
    category: Annotated[_Category, Meta(description="Default: all of them.")] | None = None
    reason: Literal["opt-out", "bounce", "complaint"] | None = None
