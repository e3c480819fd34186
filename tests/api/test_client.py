"""EngineClient.submit, on which the Python API stands: which messages a request gets, and when its last."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from specllama import EngineClient, LoadSettings, ModelSettings, SpecllamaError
from specllama.client import protocol as m
from specllama.config.build import settings_of_arguments
from specllama.errors import EngineDiedError, UsageError
from specllama.models import prepare
from specllama.models.resolve import Library
from tests.support.generations import generate
from tests.support.processes import SOON

Inbox = queue.SimpleQueue[m.Message | SpecllamaError]


def settings() -> LoadSettings:
    fields = {"n_slots": 2, "draft_max": 0, "n_gpu_layers": 0, "drafters": ()}
    named = settings_of_arguments(None, None, 32768, fields, {"n_threads": 1, "calibrate": False})
    embedded = prepare.prepare_if_on_disk(Library(), named)
    assert embedded is not None
    assert isinstance(embedded.target, ModelSettings)
    return embedded


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    with EngineClient() as one:
        one.load(settings())
        yield one


def ask(client: EngineClient, n: int) -> m.Generate:
    return generate(client.next_id(), prompt="def ", params={"max_tokens": n, "ignore_eos": True, "seed": 1})


def until_done(inbox: Inbox) -> list[m.Message]:
    """All that is delivered, to the Done."""
    received: list[m.Message] = []
    while not received or not isinstance(received[-1], m.Done):
        message = inbox.get(timeout=SOON)
        assert not isinstance(message, SpecllamaError)
        received.append(message)
    return received


def until_tokens(inbox: Inbox) -> None:
    while not isinstance(inbox.get(timeout=SOON), m.Tokens):
        pass


class TestDelivery:
    def test_in_order_and_of_this_request_alone(self, client: EngineClient) -> None:
        boxes = [Inbox() for _ in range(3)]
        requests = [ask(client, n) for n in (3, 5, 7)]
        for request, inbox in zip(requests, boxes, strict=True):
            assert client.submit(request, inbox.put).id == request.id
        for request, inbox, n in zip(requests, boxes, (3, 5, 7), strict=True):
            received = until_done(inbox)
            assert isinstance(received[0], m.Started)
            tokens = [message for message in received if isinstance(message, m.Tokens)]
            assert {item.id for message in tokens for item in message.items} == {request.id}
            assert sum(len(message.items[0].ids) for message in tokens) == n
            assert inbox.empty()

    def test_the_end_is_delivered_after_cancel(self, client: EngineClient) -> None:
        inbox = Inbox()
        submission = client.submit(ask(client, 30000), inbox.put)
        until_tokens(inbox)
        submission.cancel()
        done = until_done(inbox)[-1]
        assert isinstance(done, m.Done)
        assert done.reason == "cancel"
        submission.cancel()
        submission.discard()

    def test_nothing_is_delivered_after_leave(self, client: EngineClient) -> None:
        inbox = Inbox()
        submission = client.submit(ask(client, 30000), inbox.put)
        until_tokens(inbox)
        submission.discard()
        other = Inbox()
        client.submit(ask(client, 2), other.put)
        until_done(other)
        while not inbox.empty():  # what came before the leave
            assert not isinstance(inbox.get(), (m.Done, SpecllamaError))
        submission.discard()

    def test_an_error_is_delivered_once(self, client: EngineClient) -> None:
        inbox = Inbox()
        client.submit(generate(client.next_id(), prompt="a", params={"temperature": -1}), inbox.put)
        assert isinstance(inbox.get(timeout=SOON), UsageError)
        assert inbox.empty()

    def test_what_cannot_be_sent_is_raised_and_not_delivered(self, client: EngineClient) -> None:
        inbox = Inbox()
        with pytest.raises(UsageError, match="cannot be written as JSON"):
            client.submit(generate(client.next_id(), messages=[], variables={"a": object()}), inbox.put)
        running = client.submit(ask(client, 30000), inbox.put)
        with pytest.raises(UsageError, match=f"there is a request {running.id} already"):
            client.submit(generate(running.id, prompt="a"), Inbox().put)
        running.discard()
        assert client.submit(ask(client, 1), inbox.put).id != running.id


class TestDeath:
    def test_every_request_gets_its_own_error(self) -> None:
        with EngineClient() as client:
            client.load(settings())
            finished, boxes = Inbox(), [Inbox() for _ in range(4)]
            client.submit(ask(client, 2), finished.put)
            until_done(finished)
            for inbox in boxes:
                client.submit(ask(client, 30000), inbox.put)
            until_tokens(boxes[0])
            psutil.Process(client.pid).kill()
            errors = []
            for inbox in boxes:
                while not isinstance(message := inbox.get(timeout=SOON), SpecllamaError):
                    pass
                errors.append(message)
                assert inbox.empty()
            assert {type(error) for error in errors} == {EngineDiedError}
            assert len({id(error) for error in errors}) == 4
            for _ in range(2):
                with pytest.raises(EngineDiedError, match="SIGKILL") as raised:
                    client.submit(ask(client, 1), boxes[0].put)
                assert len(raised.traceback) < 10  # it does not grow from one use to the next
            assert boxes[0].empty()
            assert finished.empty()

    def test_requests_that_arrive_while_it_dies(self) -> None:
        """Each is either refused or gets its error; none is forgotten."""
        with EngineClient() as client:
            client.load(settings())
            ends, refused, submitted, stop = Inbox(), 0, 0, time.monotonic() + SOON

            def deliver(message: m.Message | SpecllamaError) -> None:
                if isinstance(message, (m.Done, SpecllamaError)):
                    ends.put(message)

            def kill() -> None:
                time.sleep(0.05)
                psutil.Process(client.pid).kill()

            threading.Thread(target=kill).start()
            while not refused and time.monotonic() < stop:
                try:
                    client.submit(ask(client, 30000), deliver)
                    submitted += 1
                except EngineDiedError:
                    refused += 1
            assert refused
            for _ in range(submitted):
                assert isinstance(ends.get(timeout=SOON), EngineDiedError)
            assert ends.empty()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_callback_that_raises_harms_no_other(self) -> None:
        def bad(_: object) -> None:
            raise ZeroDivisionError

        with EngineClient() as client:
            client.load(settings())
            inbox = Inbox()
            client.submit(ask(client, 30000), inbox.put)
            client.submit(ask(client, 30000), bad)
            while not isinstance(message := inbox.get(timeout=SOON), SpecllamaError):
                pass
            assert "could not be delivered" in str(message)
