"""Connections: reused, broken, refused, encrypted, and all closed at the end."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from functools import partial

import pytest

from delayed_queue.http.callbacks.calls import CallbackRequest, CallbackResult, Failure
from delayed_queue.http.callbacks.client import CallbackClient
from delayed_queue.http.callbacks.exchanges import MAX_IDLE
from delayed_queue.http.conf import CallbackSettings
from tests.http.callbacks import servers
from tests.http.callbacks.names import NameServer
from tests.http.callbacks.sending import names_of, reaching, send_all, send_once, with_client
from tests.http.callbacks.servers import (
    Behaviour,
    Received,
    Receiver,
    Wire,
    answered,
    answering,
    answering_after,
    answering_in_turn,
)


class TestReuse:
    def test_a_connection_is_reused(self) -> None:
        with Receiver() as receiver:
            results = send_all(receiver, 5)
        assert all(each.is_success for each in results)
        assert {each.address for each in results} == {"127.0.0.1"}
        assert (receiver.connections, len(receiver.requests)) == (1, 5)

    @pytest.mark.parametrize("status", [204, 302, 404, 500])
    def test_after_any_complete_answer(self, status: int) -> None:
        with Receiver(answering(status, b"")) as receiver:
            send_all(receiver, 3)
        assert (receiver.connections, len(receiver.requests)) == (1, 3)

    def test_one_that_was_closed_meanwhile_is_not_written_to(self) -> None:
        """The loop had no chance to see the close: the client must check the socket."""
        with Receiver() as receiver:
            results = send_all(receiver, 4, receiver.close_connections)
        assert all(each.is_success for each in results)
        assert (receiver.connections, len(receiver.requests)) == (4, 4)

    def test_between_callbacks_nothing_may_be_read(self) -> None:
        async def use(client: CallbackClient) -> None:
            assert (await client.send(CallbackRequest(receiver.url, b"{}"))).is_success
            [idle] = client.sockets.opened.values()
            assert (idle.allowance, idle.user) == (0, None)

        with Receiver() as receiver:
            with_client(reaching(receiver), use)

    def test_an_answer_that_nobody_asked_for_answers_nothing(self) -> None:
        behaviour = answering_in_turn(answering(200), answering(500))
        with Receiver(behaviour) as receiver:
            stray = partial(receiver.write_to_all, answered(200, b"stray"))
            results = send_all(receiver, 2, stray)
        assert [each.status for each in results] == [200, 500]
        assert len(receiver.requests) == 2

    def test_nor_when_the_loop_has_read_it(self) -> None:
        async def use(client: CallbackClient) -> list[int | None]:
            request = CallbackRequest(receiver.url, b"{}")
            first = await client.send(request)
            await asyncio.to_thread(receiver.write_to_all, answered(200, b"stray"))
            await asyncio.sleep(0.05)
            return [first.status, (await client.send(request)).status]

        behaviour = answering_in_turn(answering(200), answering(500))
        with Receiver(behaviour) as receiver:
            assert with_client(reaching(receiver), use) == [200, 500]
        assert (receiver.connections, len(receiver.requests)) == (2, 2)

    def test_two_answers_at_once_answer_one_request(self) -> None:
        twice = servers.writing(answered(200, b"a") + answered(200, b"b"), close=False)
        with Receiver(answering_in_turn(twice, answering(500))) as receiver:
            results = send_all(receiver, 2)
        assert [each.status for each in results][1] == 500

    @pytest.mark.parametrize("behaviour", [servers.closing, servers.resetting])
    def test_a_post_is_never_sent_twice(self, behaviour: Behaviour) -> None:
        """Even on a connection that worked before, where some clients retry."""
        with Receiver(answering_in_turn(answering(), behaviour, answering())) as receiver:
            results = send_all(receiver, 2)
            assert [each.failure for each in results] == [None, Failure.RESET]
            assert results[1].is_ambiguous
            assert len(receiver.requests) == 2

    def test_no_more_than_some_stay_open(self) -> None:
        number = MAX_IDLE + 20

        async def use(client: CallbackClient) -> None:
            request = CallbackRequest(receiver.url, b"{}")
            for _ in range(2):
                results = await asyncio.gather(*(client.send(request) for _ in range(number)))
                assert all(each.is_success for each in results)
            assert len(client.sockets.opened) <= MAX_IDLE + 1

        with Receiver(answering_after(0.02)) as receiver:
            with_client(reaching(receiver, TOTAL_TIMEOUT=timedelta(seconds=10)), use)

    def test_cookies_are_not_kept(self) -> None:
        """By name: no jar keeps cookies of an address."""

        async def use(client: CallbackClient) -> None:
            request = CallbackRequest(f"http://hooks.example.com:{receiver.port}/", b"{}")
            for _ in range(2):
                assert (await client.send(request)).is_success

        answers = {"hooks.example.com": ["127.0.0.1"]}
        behaviour = answering(headers={"Set-Cookie": "a=b; Path=/"})
        with Receiver(behaviour) as receiver, NameServer(answers) as names:
            with_client(reaching(receiver), use, partial(names_of, names))
        assert "cookie" not in receiver.requests[1].headers


class TestFailures:
    def test_a_closed_port(self) -> None:
        with Receiver() as receiver:
            settings = reaching(receiver)
        result = send_once(receiver.url, settings)
        assert (result.failure, result.is_ambiguous) == (Failure.REFUSED, False)
        assert result.address == "127.0.0.1"

    def test_a_host_that_does_not_accept(self) -> None:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            with _filled(deaf):
                result = self._to(deaf.getsockname()[1])
        assert (result.failure, result.is_ambiguous) == (Failure.CONNECT_TIMEOUT, False)
        assert result.duration < timedelta(seconds=2)

    def _to(self, port: int) -> CallbackResult:
        settings = CallbackSettings(
            ALLOWED_NETWORKS=["127.0.0.1"],
            ALLOWED_PORTS=[port],
            CONNECT_TIMEOUT=timedelta(seconds=0.2),
        )
        return send_once(f"http://127.0.0.1:{port}/", settings)

    def test_a_server_that_speaks_first_is_asked_once(self) -> None:
        with Receiver(unread=servers.writing(b"SSH-2.0-OpenSSH_9.7\r\n")) as receiver:
            result = send_once(receiver.url, reaching(receiver))
        assert result.failure in {Failure.PROTOCOL, Failure.RESET}
        assert receiver.connections == 1

    def test_a_server_that_closes_at_once_is_asked_once(self) -> None:
        with Receiver(unread=servers.closing) as receiver:
            result = send_once(receiver.url, reaching(receiver))
        assert result.failure is Failure.RESET
        assert receiver.connections == 1

    def test_the_next_address_is_tried(self) -> None:
        with Receiver(host="127.0.0.2") as receiver:
            settings = reaching(receiver, ALLOWED_NETWORKS=["127.0.0.0/8"])
            with NameServer({"hooks.example.com": ["127.0.0.3", "127.0.0.2"]}) as names:
                url = f"http://hooks.example.com:{receiver.port}/"
                result = send_once(url, settings, partial(names_of, names))
        assert (result.failure, result.address) == (None, "127.0.0.2"), result

    def test_no_files_left_is_not_the_receivers_fault(self) -> None:
        """A missing local socket is no failure of the host."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

        async def use(client: CallbackClient) -> CallbackResult:
            with socket.socket() as probe:
                lowest = probe.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                return await client.send(CallbackRequest(receiver.url, b"{}"))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        with Receiver() as receiver:
            result = with_client(reaching(receiver), use)
        assert (result.failure, result.is_ambiguous) == (Failure.LOCAL, False)

    def test_a_bug_is_not_an_outcome(self) -> None:
        with Receiver() as receiver, pytest.raises(TypeError):
            send_once(receiver.url, reaching(receiver), body=5)  # type: ignore[arg-type]


def _filled(deaf: socket.socket) -> socket.socket:
    """Fill the backlog of a listening socket, so that it takes no more connections."""
    filler = socket.socket()
    filler.setblocking(False)
    filler.connect_ex(deaf.getsockname())
    return filler


class TestLimits:
    def test_no_more_than_the_slots_are_on_the_wire(self) -> None:
        seen: list[int] = []
        open_now = 0

        async def counted(wire: Wire, request: Received) -> None:
            nonlocal open_now
            open_now += 1
            seen.append(open_now)
            await asyncio.sleep(0.1)
            open_now -= 1
            await wire.answer()

        async def use(client: CallbackClient) -> list[CallbackResult]:
            request = CallbackRequest(receiver.url, b"{}")
            return await asyncio.gather(*(client.send(request) for _ in range(30)))

        with Receiver(counted) as receiver:
            # The wait for a slot does not count in a callback's time.
            total = timedelta(seconds=0.6)
            results = with_client(reaching(receiver, CONNECTIONS=3, TOTAL_TIMEOUT=total), use)
        assert all(each.is_success for each in results)
        assert max(seen) == 3

    def test_a_cancelled_callback_gives_its_slot_back(self) -> None:
        async def use(client: CallbackClient) -> CallbackResult:
            request = CallbackRequest(receiver.url, b"{}")
            task = asyncio.create_task(client.send(request))
            await asyncio.to_thread(receiver.wait_for_requests, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await client.send(request)

        behaviour = answering_in_turn(servers.silent, answering())
        with Receiver(behaviour) as receiver:
            settings = reaching(receiver, CONNECTIONS=1, TOTAL_TIMEOUT=timedelta(seconds=20))
            assert with_client(settings, use).is_success
