"""The shipped file of requests, and what sets up for it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from django.core.management import call_command

from delayed_queue.http.api import Problem
from delayed_queue.http.api.bodies import parse
from delayed_queue.notifications.catalogue import find_template
from delayed_queue.notifications.models import Suppression, Template
from delayed_queue.notifications.validation import Request, validate
from example_project.data import make_notifications
from example_project.samples import FILE, Sample, read_samples

NOW = datetime.now(UTC)


def test_the_file_is_what_its_script_makes():
    assert FILE.read_bytes() == make_notifications.as_bytes()


def test_arrivals_are_in_order_and_by_both_ways():
    samples = list(read_samples())
    assert len(samples) == 10_000
    assert [each.after for each in samples] == sorted(each.after for each in samples)
    assert Counter(each.via for each in samples)["broker"] > 2_500


def is_valid(sample: Sample) -> bool:
    try:
        raw = parse(sample.body(NOW), 32)
    except Problem:
        return False
    return isinstance(validate(raw, find_template, NOW), Request)


@pytest.mark.django_db
def test_all_is_valid_but_what_is_meant_to_be_wrong():
    call_command("setupnotifications")
    for sample in read_samples():
        assert is_valid(sample) == (sample.kind != "wrong"), sample.line


@pytest.mark.django_db
def test_wrong_ones_are_wrong_in_many_ways():
    call_command("setupnotifications")
    messages: Counter[tuple[str, str]] = Counter()
    for sample in read_samples():
        if sample.kind == "wrong" and "request" in sample.line:
            answer = validate(json.loads(sample.body(NOW)), find_template, NOW)
            assert not isinstance(answer, Request)
            messages[(answer[0].path, answer[0].message)] += 1
    assert len(messages) >= 20


@pytest.mark.django_db
def test_setting_up_again_changes_nothing():
    call_command("setupnotifications")
    before = Template.objects.count(), Suppression.objects.count()
    call_command("setupnotifications")
    assert (Template.objects.count(), Suppression.objects.count()) == before
    assert before == (7, make_notifications.OPTED_OUT)
