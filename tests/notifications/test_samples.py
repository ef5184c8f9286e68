"""The shipped sample requests, and their setup."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest
from django.core.management import call_command

from delayed_queue.http.api import Problem
from delayed_queue.http.api.bodies import parse
from delayed_queue.notifications.catalogue import find_template
from delayed_queue.notifications.validation import Request, validate
from example_project.data import make_notifications
from example_project.samples import FILE, Sample, read_samples

NOW = datetime.now(UTC)


def test_the_file_is_what_its_script_makes():
    assert FILE.read_bytes() == make_notifications.as_bytes()


def is_valid(sample: Sample) -> bool:
    try:
        raw = parse(sample.body(NOW), 32)
    except Problem:
        return False
    return isinstance(validate(raw, find_template, NOW), Request)


@pytest.mark.django_db
def test_all_is_valid_but_what_is_meant_to_be_wrong():
    call_command("setupnotifications")
    for sample in islice(read_samples(), 0, None, 5):
        assert is_valid(sample) == (sample.kind != "wrong"), sample.line
