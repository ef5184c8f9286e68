"""What the pages of messages and of dead letters share: rows with a key, in a queue."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.admin.base import QueueModelAdmin
from delayed_queue.admin.filters import KIND
from delayed_queue.admin.rows import LetterRow, MessageRow


class KeyedRowAdmin(QueueModelAdmin):
    """Columns and fields of a row that is, or was, a message."""

    @admin.display(description="key")
    def key_column(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.key_label(row.key)

    @admin.display(description="queue")
    def queue_column(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.kind_label(row.kind)

    @admin.display(description="attempts")
    def attempts_column(self, row: MessageRow | LetterRow) -> int:
        return row.attempts

    # The detail page

    @admin.display(description="queue")
    def queue(self, row: MessageRow | LetterRow) -> SafeString:
        url = f"../../?{urlencode({KIND: row.kind})}"
        return format_html('<a href="{}">{}</a>', url, formats.kind_label(row.kind))

    @admin.display(description="key")
    def key_shown(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.key_label(row.key)

    @admin.display(description="first error")
    def first_failure(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.error_block(row.first_error)

    @admin.display(description="last error")
    def last_failure(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.error_block(row.last_error)

    @admin.display(description="headers")
    def headers_shown(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.headers_block(row.headers)
