"""All services of Apprise as a provider."""

from __future__ import annotations

from urllib.parse import quote

from apprise import Apprise

from delayed_queue.notifications.providers import Outcome, ThreadedProvider, Verdict, failed
from delayed_queue.notifications.services import Outgoing


class AppriseProvider(ThreadedProvider):
    """Sends to the Apprise URL, in which ``{recipient}`` is filled in.

    Apprise returns only success or failure, and a failure may be a timeout after the data was sent.
    So every failure is ambiguous.
    """

    def __init__(self, name: str, *, url: str, threads: int = 10) -> None:
        super().__init__(name, threads)
        self._url = url

    def send_now(self, outgoing: Outgoing) -> Outcome:
        if outgoing.mail:
            return failed(Verdict.PERMANENT, "needs a provider of the kind email")
        try:
            service = self._service(outgoing)
        except ValueError:
            return failed(Verdict.TRANSIENT, "no such service")
        if service.notify(body=outgoing.body, title=outgoing.subject):
            return Outcome(Verdict.ACCEPTED, "sent")
        return failed(Verdict.AMBIGUOUS, "not sent")

    def check(self, probe: Outgoing) -> None:
        self._service(probe)

    def _service(self, outgoing: Outgoing) -> Apprise:
        service = Apprise()
        if not service.add(self._url.replace("{recipient}", quote(outgoing.recipient, safe=""))):
            raise ValueError("The url is not one of Apprise.")
        return service
