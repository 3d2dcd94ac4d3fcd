"""One try to wake a conversation, over real HTTP, against cores of every kind."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from support.modules.raw_module import Behaviour, Peer, after_request, answering, http, raw_module
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.wakes import OTHER_SECRET, SECRET, wake
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.wakeups.events import wake_body
from toolfleet_tasks.wakeups.sender import DeliveryAnswer, WebhookSender, seconds_until_next

BODY = wake_body(wake())


async def one_try(behaviour: Behaviour, *, seconds: float = 5, kind: str = "continue") -> DeliveryAnswer:
    async with raw_module(behaviour) as core:
        sender = WebhookSender(core.url, SECRET, timeout_seconds=seconds)
        answer = await sender.send("job-1", BODY, path=f"/{kind}")
        await sender.aclose()
    return answer


@pytest.mark.parametrize(("kind", "path"), [("continue", "/continue"), ("notify", "/notify")])
async def test_news_are_posted_signed(kind: str, path: str) -> None:
    """The standard's own package verifies them; id and idempotency key are the wake's."""
    async with raw_module(answering(http(b"{}"))) as core:
        sender = WebhookSender(core.url, SECRET, timeout_seconds=5)
        assert await sender.send("job-1", BODY, path=f"/{kind}") == DeliveryAnswer(accepted=True)
        await sender.aclose()
    (request,) = core.requests

    assert request.line == f"POST {path} HTTP/1.1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == request.headers["webhook-id"] == "job-1"
    assert Webhook(SECRET).verify(request.body, request.headers) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER_SECRET).verify(request.body, request.headers)


async def test_every_try_is_signed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries go on for days, and a core takes signatures of these minutes only."""
    then = fleet_clock.utc_now()
    monkeypatch.setattr(fleet_clock, "utc_now", lambda: then)
    async with raw_module(answering(http(b""))) as core:
        sender = WebhookSender(core.url, SECRET, timeout_seconds=5)
        await sender.send("job-1", BODY, path="/continue")
        monkeypatch.setattr(fleet_clock, "utc_now", lambda: then + timedelta(hours=1))
        await sender.send("job-1", BODY, path="/continue")
        await sender.aclose()
    first, second = (request.headers for request in core.requests)

    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 3600
    assert first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        ("500 Oops", False),
        ("503 Later", False),
        ("408 Slow", False),
        ("409 Busy", False),
        ("425 Early", False),
        ("429 Many", False),
        ("400 Bad", True),
        ("401 Who", True),
        ("404 Nothing", True),
        ("410 Gone", True),
        ("302 Found", True),
        ("307 Elsewhere", True),
        ("999 What", False),
    ],
)
async def test_only_2xx_accepts(status: str, refused: bool) -> None:
    """Whatever else a core says, the news stay; where it will hardly say otherwise soon, they wait longer."""
    answer = await one_try(answering(http(b"not \x1b[31mtoday", status, "Location: http://127.0.0.1:1/stolen")))

    assert not answer.accepted
    assert answer.refused is refused
    assert status[:3] in answer.reason
    assert answer.reason.endswith("not [31mtoday")


@pytest.mark.parametrize("status", ["200 OK", "201 Made", "202 Taken", "204 Nothing"])
async def test_every_2xx_accepts(status: str) -> None:
    """A core may act afterwards."""
    assert (await one_try(answering(http(b"", status)))).accepted


async def test_a_redirect_is_not_followed() -> None:
    """What is signed for the core goes nowhere else."""
    async with raw_module(answering(http(b""))) as other:
        answer = await one_try(answering(http(b"", "307 Elsewhere", f"Location: {other.url}/continue")))

    assert not answer.accepted
    assert other.requests == []


async def test_cookies_are_not_kept() -> None:
    """One try has nothing of another."""
    async with raw_module(answering(http(b"", "500 Oops", "Set-Cookie: owl=1"))) as core:
        sender = WebhookSender(core.url, SECRET, timeout_seconds=5)
        for _ in range(2):
            await sender.send("job-1", BODY, path="/continue")
        await sender.aclose()

    assert len(core.requests) == 2
    assert all("cookie" not in request.headers for request in core.requests)


async def hang(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def trickle(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\n")
    await peer.send_for_ever(b"X-Owl: 1\r\n", every=0.05)


async def many_headers(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\n")
    await peer.send_for_ever(b"X-Owl: " + b"o" * 1000 + b"\r\n")


async def reset(peer: Peer) -> None:
    await peer.request()
    peer.reset()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (hang, "no answer within 0.5 s"),
        (trickle, "no answer within 0.5 s"),
        (many_headers, "RemoteProtocolError"),
        (reset, "ReadError"),
        (after_request(), "RemoteProtocolError"),
        (after_request(b"owl owl owl\r\n\r\n"), "RemoteProtocolError"),
    ],
    ids=["hangs", "trickles", "has no end of headers", "resets", "closes", "is no server"],
)
async def test_a_core_that_does_not_answer_is_left_in_time(behaviour: Behaviour, reason: str) -> None:
    """The news stay, and the reason is told."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await one_try(behaviour, seconds=0.5 if "0.5 s" in reason else 20)

    assert not answer.accepted
    assert reason in answer.reason


async def test_a_core_that_is_not_there_is_named_by_its_error() -> None:
    """Not by its address, which may have a password."""
    sender = WebhookSender("http://owl:s3cret@127.0.0.1:1", SECRET, timeout_seconds=5)
    answer = await sender.send("job-1", BODY, path="/continue")
    await sender.aclose()

    assert not answer.accepted
    assert "ConnectError" in answer.reason
    assert "s3cret" not in answer.reason


async def flood(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
    await peer.send_for_ever(b"o" * 100_000)


async def drip(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 202 OK\r\nContent-Length: 99999999999\r\n\r\n")
    await peer.send_for_ever(b"o", every=0.05)


@pytest.mark.parametrize("behaviour", [flood, drip], ids=["floods", "drips"])
async def test_the_status_accepts_whatever_the_body_does(behaviour: Behaviour) -> None:
    """It is not read on, and the connection is closed."""
    async with raw_module(behaviour) as core:
        sender = WebhookSender(core.url, SECRET, timeout_seconds=10)
        assert (await asyncio.wait_for(sender.send("job-1", BODY, path="/continue"), PATIENCE_SECONDS)).accepted
        await wait_until(lambda: core.departures == 1, "the connection is closed")
        await sender.aclose()


@pytest.mark.parametrize("wake_id", ["job-1\r\nX-Owl: 1", "job-1☃"], ids=["two lines", "not latin"])
async def test_an_id_that_is_no_header_does_no_harm(wake_id: str) -> None:
    """It can only have been planted; it is not sent, waits, and is given up."""
    async with raw_module(answering(http(b"", "202 Taken"))) as core:
        sender = WebhookSender(core.url, SECRET, timeout_seconds=5)
        answer = await sender.send(wake_id, BODY, path="/continue")
        assert (await sender.send("job-1", BODY, path="/continue")).accepted
        await sender.aclose()

    assert not answer.accepted
    assert [request.headers["webhook-id"] for request in core.requests] == ["job-1"]


@pytest.mark.parametrize(
    ("tries", "answer", "least", "most"),
    [
        (1, DeliveryAnswer(accepted=False), 0.8, 1.2),
        (2, DeliveryAnswer(accepted=False), 4, 6),
        (3, DeliveryAnswer(accepted=False), 24, 36),
        (7, DeliveryAnswer(accepted=False), 2880, 4320),
        (1000, DeliveryAnswer(accepted=False), 2880, 4320),
        (7, DeliveryAnswer(accepted=False, is_away=True), 96, 144),  # who may be back any moment
        (1, DeliveryAnswer(accepted=False, refused=True), 24, 36),  # a core that is being deployed
        (1, DeliveryAnswer(accepted=False, retry_after_seconds=17), 17, 21),
        (1, DeliveryAnswer(accepted=False, retry_after_seconds=0), 1, 1.2),
        (1, DeliveryAnswer(accepted=False, retry_after_seconds=86_400), 3600, 4320),
    ],
)
def test_tries_become_rarer(tries: int, answer: DeliveryAnswer, least: float, most: float) -> None:
    """From a second to an hour, never all at once; the core's own wish counts within bounds."""
    waits = {seconds_until_next(tries, answer) for _ in range(100)}

    assert least <= min(waits)
    assert max(waits) <= most
    assert len(waits) > 50


async def test_the_cores_wish_is_read() -> None:
    """Seconds or a date."""
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    in_seconds = await one_try(answering(http(b"", "503 Later", "Retry-After: 7")))
    at_a_time = await one_try(answering(http(b"", "503 Later", f"Retry-After: {in_an_hour}")))

    assert in_seconds.retry_after_seconds == 7
    assert at_a_time.retry_after_seconds == pytest.approx(3600, abs=60)
