"""Judges a service's answer: which reply to the fleet it is."""

from email.message import Message
from http import HTTPStatus
from typing import Any

from toolfleet_modules.hosts.openapi.calls.http_sender import ServiceAnswer
from toolfleet_modules.hosts.openapi.documents.body_plan import is_json
from toolfleet_modules.hosts.serving.secrets import Secrets
from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts.retry_after import parse_retry_after
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.files import Audio, File, Image
from toolfleet_registry.system.http_bodies import loads_strict

_BUSY = frozenset({408, 425, 429})  # whoever says this has not begun
_MOVED = frozenset({301, 307, 308})
_BUSY_SECONDS = 1.0
_MOST_SHOWN = 1500  # characters of an error's body
_TEXTS = frozenset(
    {"application/xml", "application/javascript", "application/yaml", "application/x-www-form-urlencoded"}
)


def reply_of(name: str, answer: ServiceAnswer, *, is_repeatable: bool, most_bytes: int, secrets: Secrets) -> Reply:
    """The reply. Raises `ModuleBusy` for an answer that says that nothing has begun, and to come back."""
    status = answer.status
    retry_after = parse_retry_after(answer.headers.get("retry-after"))
    # A proxy says 503 also when its connection broke after it had passed the request on.
    is_away = status == HTTPStatus.SERVICE_UNAVAILABLE and (retry_after is not None or is_repeatable)
    if status in _BUSY or is_away:
        raise ModuleBusy(_BUSY_SECONDS if retry_after is None else retry_after)
    if status // 100 == 2:  # noqa: PLR2004 - their class
        try:
            result = _result(answer, secrets)
        except ValueError as exc:
            return Reply.failure(name, f"{name} has answered with what is {exc}.", effect_state="done")
        return Reply.success(name, result, most_bytes=most_bytes)
    if status // 100 == 3:  # noqa: PLR2004 - as above
        error = f"{name} has answered with a redirect ({status}), which is not followed: it leads elsewhere, or would send anew."
        return Reply.failure(name, error, effect_state="none" if status in _MOVED or is_repeatable else "unknown")
    words = " ".join(secrets.hide(_text(answer)).split())[
        :_MOST_SHOWN
    ]  # hidden first: a cut or joined value is not found
    error = f"{name} has answered with status {status}{_phrase(status)}{': ' if words else '.'}{words}"
    if status // 100 == 4:  # noqa: PLR2004 - as above
        return Reply.failure(name, error, effect_state="none")
    return Reply.failure(name, error, effect_state="unknown", retryable=is_repeatable)


def _result(answer: ServiceAnswer, secrets: Secrets) -> Any:
    """JSON as it is, text as text, else a file; `None` for nothing. Raises `ValueError`."""
    if not answer.body:
        return None
    said = answer.headers.get("content-type", "")
    media_type = said.partition(";")[0].strip().lower()
    if is_json(media_type):
        return loads_strict(answer.body)
    if not media_type or _is_text(media_type):
        return _text(answer)
    data = secrets.hide_bytes(answer.body)  # in base64 it would not be seen
    return _file(data, media_type, _file_name(answer.headers.get("content-disposition", "")))


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
    message = Message()
    message["content-type"] = answer.headers.get("content-type", "")
    try:
        return answer.body.decode(message.get_content_charset() or "utf-8", "replace")
    except LookupError:
        return answer.body.decode(errors="replace")


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""
