"""Use the queue from end to end, and fetch each page of its admin; print the findings."""

from __future__ import annotations

import django

django.setup()

from django.apps import apps  # noqa: E402 # needs to be set up
from django.contrib import admin  # noqa: E402
from django.contrib.auth import get_user_model  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

from delayed_queue import DelayedQueue  # noqa: E402
from delayed_queue.models import DeadLetter, Message  # noqa: E402


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the test reads it


call_command("migrate", verbosity=0)
call_command("check")
queue = DelayedQueue("orders")
queue.offer_or_update("one", 1)
queue.offer_or_update("two", 2)
envelope = queue.try_poll()
if envelope is not None:
    envelope.reject("tried out")

user = get_user_model().objects.create_superuser("operator", "o@example.com", "secret")
client = Client()
client.force_login(user)
registered = [each._meta for each in apps.get_models() if admin.site.is_registered(each)]
ours = [each for each in registered if each.app_label == "delayed_queue"]
pages = [f"/admin/delayed_queue/{each.model_name}/" for each in ours]
pages += ["/admin/", "/admin/delayed_queue/", "/admin/delayed_queue/queueoverview/"]
pages += [f"/admin/delayed_queue/message/{Message.objects.get().pk}/change/"]
pages += [f"/admin/delayed_queue/deadletter/{DeadLetter.objects.get().pk}/change/"]
say("wrong pages", [page for page in pages if client.get(page).status_code != 200])
say("models", sorted(str(each.model_name) for each in ours))
say("redriven", sum(queue.redrive_all().values()))
call_command("runqueueworker", burst=True, processes=0)
say("left", Message.objects.count())
