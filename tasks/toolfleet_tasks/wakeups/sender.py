"""Sends one webhook once: a `POST`, signed as Standard Webhooks has it, to an agent's core or to who follows the registry.

Nothing of one try stays for the next: no cookies, redirects or proxies. The status decides; a body is words for an operator.
"""

import asyncio
import contextlib
import math
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Final

from toolfleet_registry.contracts.attempts import parse_retry_after
from toolfleet_registry.spans import carried
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.lazy_names import LazyModule
from toolfleet_registry.system.loggers import get_logger

if TYPE_CHECKING:
    import httpx
else:
    httpx = LazyModule("httpx")

log = get_logger(__name__)

PATHS: Final = {"continue": "/continue", "notify": "/notify"}
"""Where each kind of news is sent to."""

AT_ONCE: Final = 50
"""How many conversations one process wakes at once: a core that hangs holds so many connections, not more."""

WEBHOOKS_AT_ONCE: Final = 5
"""How many events of the registry one process sends to one receiver at once."""

WEBHOOK_SECONDS: Final = 15.0
"""For a receiver's answer to an event of the registry."""

# Seconds from one try to the next; hourly from then on.
_WAITS = (1.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
_JITTER = 0.2  # of a wait, either way: a core that comes back must not meet all of them at once
_REFUSED_AFTER = 2  # a core that is just being deployed may say 404; but that it says the same a second later is likely
_LONGEST_AWAY = 120.0  # an attempt without a server costs a millisecond
_LONGEST_RETRY_AFTER = 3600.0  # seconds: the longest Retry-After that is honoured
_PASSING = frozenset({408, 409, 425, 429})  # answers of 4xx after which the same request may do

_CONNECT_SECONDS = 5.0
_BODY_BYTES, _BODY_SECONDS = 2_000, 1.0  # the status has said what there is to say
_SHOWN = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class DeliveryAnswer:
    """The result of an attempt. `reason`: in a line, without the core's address.

    `refused`: this will hardly change soon; `is_final`: it never will; `is_away`: the server was away, and may be back
    any moment.
    """

    accepted: bool
    reason: str = ""
    refused: bool = False
    is_final: bool = False
    is_away: bool = False
    retry_after_seconds: float | None = None


class WebhookSender:
    """Sends to one receiver, such as a core, each try within `timeout_seconds`. Belongs to the loop of its first try.

    Needs `toolfleet[webhooks]`, which a worker has and an agent need not: raises `ImportError`.
    """

    def __init__(self, url: str, secret: str, *, timeout_seconds: float) -> None:
        from standardwebhooks import Webhook  # an agent loads this file, too

        self._url = url
        self._webhook = Webhook(secret)
        self._timeout_seconds = timeout_seconds
        self._client: httpx.AsyncClient | None = None

    @property
    def shown_url(self) -> str:
        """The URL as traces show it: without a user, a password or a query."""
        url = httpx.URL(self._url)
        return str(url.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")

    async def send(self, webhook_id: str, body: str, *, path: str = "") -> DeliveryAnswer:
        """Try once, at the URL with this path behind it. Raises nothing but a cancellation."""
        heard = list[DeliveryAnswer]()  # once the status is there, it counts, with any rest
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._post(webhook_id, path, body, heard)
        except TimeoutError:
            failure = DeliveryAnswer(accepted=False, reason=f"no answer within {self._timeout_seconds:g} s")
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            failure = DeliveryAnswer(accepted=False, is_away=True, reason=one_line(f"{type(exc).__name__}: {exc}"))
        except (httpx.HTTPError, OSError) as exc:
            failure = DeliveryAnswer(accepted=False, reason=one_line(f"{type(exc).__name__}: {exc}"))
        except Exception as exc:  # what httpx makes of an answer that is none, and what cannot be a header
            log.exception("webhook_not_sent", webhook_id=webhook_id)
            failure = DeliveryAnswer(accepted=False, refused=True, reason=f"it cannot be sent: {type(exc).__name__}")
        else:
            return heard[-1]
        return heard[-1] if heard else failure

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _post(self, webhook_id: str, path: str, body: str, heard: list[DeliveryAnswer]) -> None:
        now = fleet_clock.utc_now()
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": webhook_id,
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._webhook.sign(webhook_id, now, body),
        }
        if (trace := carried()) is not None:
            headers |= trace.headers
        client = self._client = self._client or _new_client(self._url, self._timeout_seconds)
        async with client.stream("POST", f"{self._url}{path}", content=body.encode(), headers=headers) as response:
            heard.append(_judged(response, ""))
            heard.append(_judged(response, await _start_of(response)))


def seconds_until_next(tries: int, answer: DeliveryAnswer) -> float:
    """Return how long to wait after so many attempts: the core's own wish, or the usual delay, longer after a refusal."""
    if answer.retry_after_seconds is not None:
        retry_after = min(max(answer.retry_after_seconds, _WAITS[0]), _LONGEST_RETRY_AFTER)
        return retry_after * randomness.uniform(1, 1 + _JITTER)  # spreads load
    number = max(tries, 1) - 1 + (_REFUSED_AFTER if answer.refused else 0)
    seconds = min(_WAITS[min(number, len(_WAITS) - 1)], _LONGEST_AWAY if answer.is_away else math.inf)
    return seconds * randomness.uniform(1 - _JITTER, 1 + _JITTER)  # as above


def one_line(text: str) -> str:
    """Return the printable characters in one line, and few: it is shown in a terminal and kept in Redis."""
    words = "".join(character if character.isprintable() else " " for character in text[: 4 * _SHOWN])
    return " ".join(words.split())[:_SHOWN]


def _judged(response: "httpx.Response", words: str) -> DeliveryAnswer:
    status = response.status_code
    if status // 100 == 2:  # noqa: PLR2004 - the class of success
        return DeliveryAnswer(accepted=True)
    refused = status // 100 in {3, 4} and status not in _PASSING
    retry_after = parse_retry_after(response.headers.get("Retry-After"))
    return DeliveryAnswer(
        accepted=False, refused=refused, retry_after_seconds=retry_after, reason=one_line(f"{_named(status)} {words}")
    )


async def _start_of(response: "httpx.Response") -> str:
    """Read the beginning of a body that is there soon.

    If that is not all of it, the connection is closed afterwards.
    """
    body = bytearray()
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _BODY_BYTES:
                    break
    return body[:_BODY_BYTES].decode(errors="replace")


def _new_client(url: str, timeout_seconds: float) -> "httpx.AsyncClient":
    with_tls = url.lower().startswith("https:")
    return httpx.AsyncClient(
        verify=httpx.create_ssl_context() if with_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"User-Agent": "toolfleet", "Accept-Encoding": "identity"},
        # The deadline is ours; TCP and TLS end before it, each by itself, or httpcore leaves a socket open.
        timeout=httpx.Timeout(None, connect=min(_CONNECT_SECONDS, timeout_seconds / 2)),
        # None is kept: a POST on a connection that its server is just closing fails, and a try that is cancelled while
        # the pool puts old ones away leaves the others open.
        limits=httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0),
    )


def _named(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}."
    except ValueError:
        return f"HTTP {status}."
