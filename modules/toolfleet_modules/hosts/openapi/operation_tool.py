"""Makes a module's tool of an operation: a call is a request to its service, sent once, and the answer is read within bounds."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import httpx

from toolfleet_modules.calls.reply import Reply
from toolfleet_modules.calls.work import RunMeans, ServedRun
from toolfleet_modules.hosts.openapi.document import OpenApiDocument, Operation, OperationUnusable
from toolfleet_modules.hosts.openapi.input_fields import charset_of, is_json
from toolfleet_modules.hosts.openapi.json_schemas import SchemaTranslator
from toolfleet_modules.hosts.openapi.outgoing_request import OutgoingRequest, RequestForm, ValueRefused
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_registry.contracts import EffectState, ToolDefinition
from toolfleet_registry.contracts.attempts import parse_retry_after
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.files import Audio, File, Image
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.schemas.validation import checked
from toolfleet_registry.spans import TRACEPARENT, carried
from toolfleet_registry.system.http_bodies import BodyReader, loads_strict

_CONNECT_SECONDS = 10.0
_CONNECT_PART = 0.9  # of a call's time: that nothing was sent is said while the client still listens
_KEPT_SECONDS = 5.0  # that a connection without a request is kept: services close theirs a little later
# What a pool does for a request takes time for each of its connections: several small ones are much faster than a large one.
_POOLS, _CONNECTIONS, _KEPT = 16, 16, 4
_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_FOLLOWING = frozenset({"GET", "HEAD"})

_EMPTY = frozenset({"204", "205"})

_LONGEST_SECONDS = 300.0  # for a call whose caller has set no end
_SUCCEEDING, _REFUSING = range(200, 300), range(400, 500)

_BUSY = frozenset({408, 425, 429})  # a service with this answer has not started
_UNDONE = frozenset({301, 304, 307, 308})
_BUSY_SECONDS = 1.0
_MOST_SHOWN = 1500  # characters of an error's body
_PHRASES = {each.value: f" ({each.phrase})" for each in HTTPStatus}
_TEXTS = frozenset(
    """application/xml application/javascript application/yaml application/x-www-form-urlencoded application/x-ndjson
    application/ndjson application/jsonl application/x-jsonlines application/json-seq""".split()
)
_TELLING = frozenset(
    """link location content-location operation-location content-range retry-after x-total-count x-total x-total-pages
    x-page x-next-page x-next-cursor x-has-more""".split()
)
_KEPT_BACK = frozenset({"set-cookie", "content-type", "content-length", "date"})


class NothingSent(Exception):
    """No connection was made, so that nothing has happened. The message, a clause, says why."""


class AnswerMissing(Exception):
    """The request was sent, and no usable answer came: its effect is unknown. The message, a clause, says why."""


class AnswerUnreadable(Exception):
    """The service has answered with `status`, and what it says cannot be read. The message, a clause, says why."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """A service's answer. `headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_redirect(self) -> bool:
        """Whether it redirects to another URL."""
        return self.status in _REDIRECTS and "location" in self.headers


class HttpSender:
    """Sends over connections that calls share. No cookie is kept, nothing of the environment is sent, and no URL is logged.

    `most_bytes`: of an answer, as sent and unpacked.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pools: list[_Pool] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold the connections meanwhile, in the loop that runs."""
        limits = httpx.Limits(
            max_connections=_CONNECTIONS, max_keepalive_connections=_KEPT, keepalive_expiry=_KEPT_SECONDS
        )
        # A client around a transport would log each URL, with a key that is in its query.
        certificates = httpx.create_ssl_context(trust_env=False)
        async with AsyncExitStack() as stack:
            for _ in range(_POOLS):
                transport = httpx.AsyncHTTPTransport(verify=certificates, trust_env=False, limits=limits)
                self._pools.append(_Pool(await stack.enter_async_context(transport)))
            try:
                yield
            finally:
                self._pools = []

    async def send(self, request: OutgoingRequest, *, seconds: float, may_begin: Callable[[], bool]) -> ServiceAnswer:
        """Return the answer, within `seconds`; a redirect is followed within its origin, of a GET or HEAD.

        Raises `NothingSent`, `AnswerMissing`, `AnswerUnreadable` and `NotBegun`.
        """
        sending = asyncio.ensure_future(self._followed(request, seconds, may_begin))
        sending.add_done_callback(_retrieve_error)
        try:
            done, _ = await asyncio.wait([sending], timeout=seconds)
            if not done:
                raise AnswerMissing(f"no answer came within {seconds:g} s")
            return sending.result()
        finally:
            sending.cancel()  # once only: another one while the HTTP library closes the connection would leave it open

    async def _followed(self, request: OutgoingRequest, seconds: float, may_begin: Callable[[], bool]) -> ServiceAnswer:
        url, answer = request.url, await self._sent(request, request.url, seconds, may_begin)
        for _ in range(_MOST_REDIRECTS):
            is_followed = answer.is_redirect and request.method in _FOLLOWING
            target = within_origin(url, answer.headers["location"]) if is_followed else None
            if target is None:
                break
            url = target
            answer = await self._sent(request, url, seconds, may_begin)
        return answer

    async def _sent(
        self, request: OutgoingRequest, url: str, seconds: float, may_begin: Callable[[], bool]
    ) -> ServiceAnswer:
        if not self._pools:
            raise NothingSent("its host is not running")
        connect = min(_CONNECT_PART * seconds, _CONNECT_SECONDS)
        headers = {"Accept-Encoding": "gzip", "User-Agent": "toolfleet", **request.headers}
        if (trace := carried()) is not None and not any(name.lower() == TRACEPARENT for name in headers):
            headers |= trace.headers
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        timeouts = {"connect": connect, "pool": connect}  # the rest is bounded as a whole
        try:
            made = httpx.Request(
                request.method, url, headers=encoded, content=request.body or None, extensions={"timeout": timeouts}
            )
            if not may_begin():
                raise NotBegun
            with min(self._pools, key=lambda pool: pool.in_flight).taken() as transport:
                response = await transport.handle_async_request(made)
                try:
                    return await self._read(request.method, response)
                finally:
                    await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise NothingSent("there is no connection to it") from None
        except httpx.PoolTimeout:
            raise NothingSent("all connections to it are in use") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError):
            raise NothingSent("its request cannot be sent") from None
        except httpx.HTTPError as exc:
            raise AnswerMissing(f"the connection was lost ({type(exc).__name__})") from None

    async def _read(self, method: str, response: httpx.Response) -> ServiceAnswer:
        headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            reader = BodyReader(
                self._most_bytes,
                encoding=headers.get("content-encoding", ""),
                announced=headers.get("content-length", "") if method != "HEAD" else "",
            )
            async for chunk in response.aiter_raw():
                reader.feed(chunk)
            body = reader.finish()
        except (BodyTooLarge, BodyUnreadable) as exc:
            raise AnswerUnreadable(response.status_code, str(exc)) from None
        except httpx.HTTPError as exc:
            raise AnswerMissing(f"the connection was lost in its answer ({type(exc).__name__})") from None
        return ServiceAnswer(response.status_code, headers, body)


def _retrieve_error(sending: "asyncio.Future[ServiceAnswer]") -> None:
    """Retrieve its error, as asyncio logs one that is not retrieved. The call may be over by then."""
    if not sending.cancelled():
        sending.exception()


@dataclass(slots=True)
class _Pool:
    transport: httpx.AsyncHTTPTransport
    in_flight: int = 0

    @contextmanager
    def taken(self) -> Generator[httpx.AsyncHTTPTransport]:
        self.in_flight += 1
        try:
            yield self.transport
        finally:
            self.in_flight -= 1


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port, of which the usual one is `None`."""
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def within_origin(url: str, location: str) -> str | None:
    """Return where a redirect leads, if that is the same origin."""
    try:
        target = urljoin(url, location)
        return target if origin_of(target) == origin_of(url) and not httpx.URL(target).userinfo else None
    except (httpx.InvalidURL, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class DescribedAnswer:
    """A document's description of answers with one status: whether they are JSON, or empty, and their headers in lower case."""

    is_json: bool
    is_empty: bool
    headers: frozenset[str]


def described_answers(operation: Operation, document: OpenApiDocument) -> dict[str, DescribedAnswer]:
    """Return the description of each status, such as `200`, `2XX` or `DEFAULT`; unreadable ones are left out."""
    found = dict[str, DescribedAnswer]()
    for status, node in operation.responses.items():
        with contextlib.suppress(OperationUnusable):
            said = document.resolved(node)
            content, headers = (
                [*each] if isinstance(each := said.get(name), dict) else [] for name in ("content", "headers")
            )
            found[str(status).upper()] = DescribedAnswer(
                any(map(is_json, content)),
                operation.method == "head" or str(status) in _EMPTY,
                frozenset(name.lower() for name in headers),
            )
    return found


def output_schema(
    operation: Operation, document: OpenApiDocument, translator: SchemaTranslator
) -> dict[str, Any] | None:
    """Return the schema; `None` if an answer may be other than described JSON. Raises `OperationUnusable`."""
    found, references = list[Any](), set[str]()
    for status, node in operation.responses.items():
        if not str(status).startswith("2"):
            continue
        content = document.resolved(node).get("content")
        if operation.method == "head" or str(status) in _EMPTY:
            found.append({"type": "null"})
            continue
        if not isinstance(content, dict) or not content:
            return None  # which many documents leave out of answers that have one
        for media_type, said in content.items():
            described = said.get("schema") if isinstance(said, dict) else None
            if not is_json(media_type) or described is None:
                return None
            found.append(translator.translate(described, references))
    different = [each for number, each in enumerate(found) if each not in found[:number]]
    if not different:
        return None
    if not all(isinstance(each, dict) for each in different):
        raise OperationUnusable("InvalidSchema", "A response's schema is no object.")
    schema: dict[str, Any] = dict(different[0]) if len(different) == 1 else {"anyOf": different}
    definitions = translator.definitions(references)
    if not definitions:
        return schema
    return {**schema, "$defs": {**schema.get("$defs", {}), **definitions}}


_NOTHING = DescribedAnswer(is_json=False, is_empty=False, headers=frozenset())


@dataclass(frozen=True, slots=True)
class OperationTool:
    """`form` makes its requests, `sender` sends them; what comes back is shown without `secrets`."""

    definition: ToolDefinition
    form: RequestForm
    sender: HttpSender
    secrets: Secrets
    described: Mapping[str, DescribedAnswer] = field(default_factory=dict)

    @property
    def argument_names(self) -> frozenset[str]:
        """The names of the arguments that a model writes."""
        return frozenset(each.argument for each in self.form.plan.fields)

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "OperationRun | Reply":
        """Return a run with these arguments, or the reply to invalid ones."""
        name = context.tool_name
        held = checked(self.definition, dict(arguments))
        if held.arguments is None:
            return Reply.failure(name, f"Invalid arguments for {name}: {held.fault}", effect_state="none")
        try:
            request = self.form.request(held.arguments, context.call_id)
        except ValueRefused as exc:
            return Reply.failure(name, f"Invalid arguments for {name}: {exc}", effect_state="none")
        return OperationRun(self, context, request, means.most_bytes)


@dataclass(frozen=True, slots=True)
class OperationRun(ServedRun[OperationTool]):
    """One run."""

    request: OutgoingRequest
    most_bytes: int

    async def run(self) -> Reply:
        """Send the request. Raises `ModuleBusy`, `NotBegun` and `asyncio.CancelledError`."""
        reply = await self._replied()
        return reply.rewritten(self.tool.secrets.hide_json)

    async def _replied(self) -> Reply:
        name, is_repeatable = self.name, self.is_repeatable
        left = self.context.seconds_left
        seconds = _LONGEST_SECONDS if left is None else min(left, _LONGEST_SECONDS)
        if seconds <= 0:
            raise NotBegun
        may_begin = self.context._may_begin
        try:
            answer = await self.tool.sender.send(self.request, seconds=seconds, may_begin=may_begin)
        except NothingSent as exc:
            return Reply.failure(
                name, f"{name}: its service was not reached: {exc}.", effect_state="none", retryable=True
            )
        except AnswerMissing as exc:
            error = f"{name}: it is not known what its service has done: {exc}."
            return Reply.lost(name, error, retryable=is_repeatable)
        except AnswerUnreadable as exc:
            state: EffectState = (
                "done" if exc.status in _SUCCEEDING else "none" if exc.status in _REFUSING else "unknown"
            )
            return Reply.failure(name, f"{name} has answered with status {exc.status}: {exc}.", effect_state=state)
        return reply_of(
            name,
            answer,
            described=self.tool.described,
            is_checked=self.tool.definition.output_schema is not None,
            is_repeatable=is_repeatable,
            most_bytes=self.most_bytes,
            secrets=self.tool.secrets,
        )


def reply_of(
    name: str,
    answer: ServiceAnswer,
    *,
    described: Mapping[str, DescribedAnswer],
    is_checked: bool,
    is_repeatable: bool,
    most_bytes: int,
    secrets: Secrets,
) -> Reply:
    """Return the reply. Raises `ModuleBusy` for an answer that says that nothing has started, and to come back."""
    status = answer.status
    said = described.get(str(status)) or described.get(f"{status // 100}XX")
    words = " ".join(secrets.hide(_text(answer)).split())[:_MOST_SHOWN]  # hidden before it is cut
    error = f"{name} has answered with status {status}{_PHRASES.get(status, '')}{': ' if words else '.'}{words}"
    retry_after = parse_retry_after(answer.headers.get("retry-after"))
    # A proxy says 503 also when its connection broke after it had passed the request on.
    is_away = status == HTTPStatus.SERVICE_UNAVAILABLE and (retry_after is not None or is_repeatable)
    if status in _BUSY or is_away:
        raise ModuleBusy(_BUSY_SECONDS if retry_after is None else retry_after, error)
    if status // 100 == 2:  # noqa: PLR2004 - their class
        default = described.get("DEFAULT")
        result, is_as_said = _result(answer, said, secrets, says_json=(said or default or _NOTHING).is_json)
        why = (
            "its body is not what the document says" if said else f"the document does not describe the status {status}"
        )
        note = _note_of(answer, said or default or _NOTHING, secrets)
        return Reply.success(
            name, result, most_bytes=most_bytes, note=note, unchecked=why if is_checked and not is_as_said else None
        )
    if status // 100 == 3:  # noqa: PLR2004 - as above
        if "location" in answer.headers:
            target = secrets.hide(answer.headers["location"])[:_MOST_SHOWN]
            to = f" to {target}" if target.isprintable() and target else ""
            error = f"{name} has answered with a redirect ({status}){to}, which is not followed: it leads elsewhere, or would send anew."
        return Reply.failure(name, error, effect_state="none" if status in _UNDONE or is_repeatable else "unknown")
    if status // 100 == 4:  # noqa: PLR2004 - as above
        return Reply.failure(name, error, effect_state="none")
    return Reply.failure(name, error, effect_state="unknown", retryable=is_repeatable)


def _result(
    answer: ServiceAnswer, said: DescribedAnswer | None, secrets: Secrets, *, says_json: bool
) -> tuple[Any, bool]:
    """Return JSON as it is, text as text, else a file, and `None` for nothing; and whether that is what was described."""
    if not answer.body:
        return None, said is not None and said.is_empty
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if is_json(media_type) or not media_type or (says_json and _is_text(media_type)):
        with contextlib.suppress(ValueError):
            return loads_strict(_text(answer).encode("utf-8", "surrogatepass")), said is not None and said.is_json
    if is_json(media_type) or not media_type or _is_text(media_type):
        return _text(answer), False
    data = secrets.hide_bytes(answer.body)  # in base64 it would not be seen
    return _file(data, media_type, _file_name(answer.headers.get("content-disposition", ""))), False


def _note_of(answer: ServiceAnswer, said: DescribedAnswer, secrets: Secrets) -> str:
    """Return what an answer says in its headers that a model may need to go on."""
    names = sorted(((_TELLING | said.headers) - _KEPT_BACK) & answer.headers.keys())
    shown = [
        f"{name.title()}: {secrets.hide(answer.headers[name])}" for name in names if answer.headers[name].isprintable()
    ]
    return "\n".join(shown)[:_MOST_SHOWN]


def _file(data: bytes, media_type: str, name: str | None) -> File:
    kind = {"image": Image, "audio": Audio}.get(media_type.partition("/")[0], File)
    try:
        return kind(data, media_type, name=name)
    except ValueError:  # it is not what the service says
        return File(data)


def _file_name(disposition: str) -> str | None:
    message = Message()
    message["content-disposition"] = disposition if disposition.isprintable() else ""
    name = (message.get_filename() or "").rpartition("/")[2]
    return name[:255] if name.isprintable() and name else None


def _is_text(media_type: str) -> bool:
    return media_type.startswith("text/") or media_type in _TEXTS or media_type.endswith(("+xml", "+yaml"))


def _text(answer: ServiceAnswer) -> str:
    charset = charset_of(answer.headers.get("content-type", ""))
    try:
        return answer.body.decode(charset or "utf-8", "replace").removeprefix("\ufeff")
    except LookupError:
        return answer.body.decode(errors="replace")
