"""Error of a host without a time zone database, as slim images are."""

from __future__ import annotations

import pytest

from delayed_queue.checks import check_zones
from delayed_queue.cron.rules import has_zones
from tests.words.test_imports import run

NO_ZONES = """
import sys, zoneinfo
zoneinfo.reset_tzpath(to=[])
sys.modules["tzdata"] = None
"""
REFUSED = """
from delayed_queue import CronSchedule, DailySchedule, PeriodicSchedule
try:
    {schedule}
except ValueError as error:
    print(error)
"""


def test_hosts_that_have_one_hear_nothing():
    assert has_zones()
    assert check_zones() == []


@pytest.mark.parametrize("zone", ["Europe/Bucharest", "UTC"])
def test_a_zone_is_refused_with_what_to_install(zone: str):
    schedule = f'CronSchedule("@daily", timezone="{zone}")'
    assert run(NO_ZONES + REFUSED.format(schedule=schedule)) == (
        f"Unknown time zone '{zone}': there is no time zone database here: "
        "install the Python package tzdata.\n"
    )


def test_periodic_schedules_need_none():
    schedule = "print(PeriodicSchedule(__import__('datetime').timedelta(hours=1)).interval)"
    assert run(NO_ZONES + REFUSED.format(schedule=schedule)) == "0:15:00\n"


def test_the_system_check_warns():
    settings = "from django.conf import settings; settings.configure(USE_I18N=False)\n"
    code = "from delayed_queue.checks import check_zones; print(check_zones()[0].id)"
    assert run(NO_ZONES + settings + code) == "delayed_queue.W004\n"
