"""Makes a module's tool of an operation: a call is a request to its service."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import Any

from toolfleet_modules.hosts.openapi.calls.http_sender import (
    AnswerMissing,
    AnswerUnreadable,
    HttpSender,
    NothingSent,
    ServiceAnswer,
)
from toolfleet_modules.hosts.openapi.calls.outgoing_request import OutgoingRequest, RequestForm
from toolfleet_modules.hosts.openapi.calls.parameter_values import ValueRefused
from toolfleet_modules.hosts.openapi.documents.body_plan import charset_of, is_json
from toolfleet_modules.hosts.openapi.documents.output_schema import DescribedAnswer
from toolfleet_modules.hosts.serving.secrets import Secrets
from toolfleet_modules.once.served_tool import RunMeans, ServedRun
from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import EffectState, ToolDefinition
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.contracts.outcomes import parse_retry_after
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.files import Audio, File, Image
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.schemas.validation import checked
from toolfleet_registry.system.http_bodies import loads_strict

_LONGEST_SECONDS = 300.0  # for a call whose caller has set no end
_SUCCEEDING, _REFUSING = range(200, 300), range(400, 500)

_BUSY = frozenset({408, 425, 429})  # a service with this answer has not started
_UNDONE = frozenset({301, 304, 307, 308})
_BUSY_SECONDS = 1.0
_MOST_SHOWN = 1500  # characters of an error's body
_PHRASES = {each.value: f" ({each.phrase})" for each in HTTPStatus}
_TEXTS = frozenset(
    """application/xml application/javascript application/yaml application/x-www-form-urlencoded application/x-ndjson
    application/ndjson application/jsonl application/x-jsonlines application/json-seq""".split()  # noqa: SIM905 - one text is read more easily
)
_TELLING = frozenset(
    """link location content-location operation-location content-range retry-after x-total-count x-total x-total-pages
    x-page x-next-page x-next-cursor x-has-more""".split()  # noqa: SIM905 - as above
)
_KEPT_BACK = frozenset({"set-cookie", "content-type", "content-length", "date"})
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
        may_begin = self.context._may_begin  # noqa: SLF001 - asked immediately before it is sent
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


def reply_of(  # noqa: PLR0913 - what an answer is judged by
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
