"""Reads a server's answers to requests, makes a module's reply of them, and names the fate of a request that is not answered.

Nothing in a server's answer decides the host's next action: an error of the server's is a plain `MCPError`, with any
code and text. Only the host makes an `Unanswered`, from what the transport has seen. A result is as the server made it,
also where that is not quite legal.
"""

import binascii
import contextlib
import json
import re
from base64 import b64decode
from collections.abc import Callable, Generator, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic_core import from_json, to_json

from toolfleet_modules.calls.reply import Reply
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.attempts import content_blocks, foreign_meta, text_in
from toolfleet_registry.functions.files import Audio, File, Image
from toolfleet_registry.system.http_bodies import without_lone_surrogates

_MOST_READ = 8000  # characters of an answer, for its words
_LARGEST_CODE = 2**31
_BLANKS = re.compile(r"\s+")
_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]{1,18}")
_ID = re.compile(rb'"id"\s*:\s*"?([0-9]{1,18})\b')
_HAS_END = re.compile(rb'"(?:result|error)"\s*:')
_ASKS = re.compile(rb'"method"\s*:\s*"tools/call"')

_PLAIN = {"type", "text"}
_MOST_OF_A_FAILURE = 2**14  # bytes of the data next to its text
_URL_SAFE = str.maketrans("-_", "+/")
_MEDIA: Mapping[object, type[File]] = {"image": Image, "audio": Audio}


class Unanswered(MCPError):
    """A request has no answer of the protocol. The message says why, in the server's words if there are any."""

    def __init__(self, message: str) -> None:
        super().__init__(types.INTERNAL_ERROR, message)


class NotTaken(Unanswered):
    """The server has surely not started, as it could not be reached, or has refused the request for now (`is_there`)."""

    def __init__(self, message: str, retry_after_seconds: float | None = None, *, is_there: bool = False) -> None:
        super().__init__(message)
        self.retry_after_seconds, self.is_there = retry_after_seconds, is_there


class Refused(Unanswered):
    """The server has surely not started, and will not before its credentials change."""


class Lost(Unanswered):
    """The connection or the session ended before the answer came: the server may have done anything."""


class Malformed(Unanswered):
    """The server has answered outside of the protocol: it may have done anything."""

    def __init__(self, words: str) -> None:
        super().__init__(f"its server's answer is none of the protocol: {words}")


class StatusFailed(Unanswered):
    """The server has answered with an HTTP status and no answer of the protocol: it may have done anything."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"its server answered with HTTP {status}{': ' * bool(words)}{words}")
        self.status = status


class SentRequest:
    """One request that the SDK sends, and what the transport has seen of its end."""

    def __init__(self) -> None:
        self.is_answered = False
        self.failure: Unanswered | None = None

    def error(self, raised: MCPError) -> MCPError:
        """Return what has failed: the SDK raises one kind for the server's errors and for what it finds itself."""
        if self.failure is not None:
            return self.failure
        return raised if self.is_answered else Lost("the connection to its server ended in the middle")


class SentRequests:
    """The requests of one session that the SDK sends, by their ids.

    `is_doubtful`: the server may no longer know the session. `on_lost` is called once it has said so by its status.
    """

    def __init__(self) -> None:
        self.is_doubtful = False
        self.on_lost: Callable[[], None] = lambda: None
        self._open: dict[types.RequestId, SentRequest] = {}

    @contextlib.contextmanager
    def begun(self, identifier: types.RequestId) -> Generator[SentRequest]:
        """Have a request's end noted meanwhile."""
        request = self._open[identifier] = SentRequest()
        try:
            yield request
        finally:
            del self._open[identifier]

    def __contains__(self, identifier: types.RequestId) -> bool:
        return identifier in self._open

    def known_id(self, message: Mapping[str, Any]) -> types.RequestId | None:
        """Return the id of the open request that a message answers, or None."""
        identifier = request_id(message.get("id")) if is_answer(message) else None
        return identifier if identifier is not None and identifier in self else None

    def settle(self, identifier: types.RequestId, answer: dict[str, Any] | MCPError) -> dict[str, Any]:
        """Note what has become of a request, and return the message that tells the SDK so."""
        request = self._open.get(identifier)
        if request is not None and isinstance(answer, Unanswered):
            request.failure = answer
        elif request is not None:
            request.is_answered = True
        said = {"error": answer.error.model_dump()} if isinstance(answer, MCPError) else {"result": answer}
        return {"jsonrpc": "2.0", "id": identifier, **said}


def unread_answer(line: bytes, is_open: Callable[[int], bool], why: str = "") -> dict[str, Any] | None:
    """Return the end of a request for a line that cannot be read and has its id: `why`, and the line. `is_open` knows the ids."""
    if not _HAS_END.search(line) or _ASKS.search(line):  # a server may print what it is asked
        return None
    found = next((number for number in map(int, _ID.findall(line)) if is_open(number)), None)
    return None if found is None else {"id": found, "result": why + line.decode("utf-8", "replace")}


def read_json(data: bytes) -> tuple[Any, bool]:
    """Return the parsed JSON, and whether it is plain JSON. Raises `ValueError`.

    Common deviations are accepted as well: lone surrogates and bytes that are no UTF-8 become U+FFFD.
    """
    try:
        return from_json(data), True
    except ValueError:
        try:
            found = without_lone_surrogates(json.loads(data.decode("utf-8-sig", "replace"), strict=False))
            to_json(found, inf_nan_mode="constants")  # what is nested too deep to be passed on cannot be read
        except RecursionError:
            raise ValueError("nested too deep") from None
        return found, False


def is_answer(message: Mapping[str, Any]) -> bool:
    """Return whether a message is an answer in any form, that is, neither a request nor a notification."""
    return "method" not in message or "result" in message or "error" in message


def request_id(identifier: object) -> types.RequestId | None:
    """Return the id that a server has written. Some return a number as text, or as a float."""
    if isinstance(identifier, float) and identifier.is_integer():
        return int(identifier)
    if isinstance(identifier, str):
        return int(identifier) if _DIGITS.fullmatch(identifier) else identifier
    return identifier if type(identifier) is int else None


def answer_to(identifier: types.RequestId, found: object, *, is_alone: bool) -> dict[str, Any] | None:
    """Return the message in `found`, alone or in a batch, that answers a request.

    `is_alone`: only the request's own answer can stand there, so that a result or an error without an id is it.
    """
    for each in found if isinstance(found, list) else [found]:
        if not isinstance(each, dict) or not is_answer(each):
            continue
        if request_id(each.get("id")) == identifier or (
            is_alone and each.get("id") is None and each.keys() & {"result", "error"}
        ):
            return each
    return None


def outcome_of(message: Mapping[str, Any]) -> dict[str, Any] | MCPError:
    """Return the result in an answer, or the error that it states or is."""
    result, error = message.get("result"), message.get("error")
    if error or (error is not None and not isinstance(result, dict)):
        return _error_of(error)
    return result if isinstance(result, dict) else Malformed(words_of(message.get("result", message)))


def words_of(said: object, media_type: str = "") -> str:
    """Return what a server has said: text as it is, without markup, and anything else as JSON; at most 8,000 characters.

    Secrets are not hidden yet, so it is cut to a few words only where that is done.
    """
    if (
        isinstance(said, dict)
        and isinstance(error := said.get("error"), dict)
        and isinstance(error.get("message"), str)
    ):
        said = error["message"]
    if isinstance(said, bytes):
        said = said.decode("utf-8", "replace")
    text = said if isinstance(said, str) else to_json(said, fallback=str, inf_nan_mode="constants").decode()
    text = text[:_MOST_READ]
    if "html" in media_type:
        text = _MARKUP.sub(" ", text)
    return _BLANKS.sub(" ", text).strip()


def _error_of(error: object) -> MCPError:
    """Return an error of any form in the protocol's, with the server's words."""
    code, message, data = None, None, None
    if isinstance(error, dict):
        code, message, data = error.get("code"), error.get("message"), error.get("data")
    if not isinstance(message, str) or not message:
        message = words_of(error)
    if type(code) is int and abs(code) <= _LARGEST_CODE:
        return MCPError(code, message, data)
    return MCPError(types.INTERNAL_ERROR, message if code is None else f"{message} ({words_of(code)})", data)


def reply_of(tool: ToolDefinition, answer: object, *, most_bytes: int) -> Reply:
    """Return the reply to a call that has come to its end. Raises `Malformed` for an answer that has nothing of a result."""
    if not isinstance(answer, dict) or answer.get("content") is answer.get("structuredContent") is None:
        raise Malformed(words_of(answer))
    content, structure = answer.get("content"), answer.get("structuredContent")
    parts = [_part_of(block) for block in (content if isinstance(content, list) else [content]) if block is not None]
    structured = {} if structure is None else {"structured": structure}
    meta = {"_meta": found} if (found := foreign_meta(answer.get("_meta"))) else {}
    if answer.get("isError") is True or answer.get("isError") == "true":
        return _failure(tool, parts, {**structured, **meta})
    is_text = len(parts) == 1 and parts[0].keys() == _PLAIN and not meta
    if (
        structured
        and not meta
        and content_blocks(structure) is None
        and (not parts or (is_text and _is_same(parts[0]["text"], structure)))
    ):
        return Reply.success(tool.name, structure, most_bytes=most_bytes)
    if not structured and (is_text or not (parts or meta)):
        return Reply.success(tool.name, text_in(parts), most_bytes=most_bytes)
    return Reply.success(tool.name, {"content": parts, **structured, **meta}, most_bytes=most_bytes)


def _failure(tool: ToolDefinition, parts: list[dict[str, Any]], more: dict[str, Any]) -> Reply:
    """Return a failure that the server states. Only what changes nothing has surely changed nothing."""
    text = text_in(part for part in parts if "text" in part) or (
        words_of(more["structured"]) if "structured" in more else ""
    )
    return Reply.failure(
        tool.name,
        text or f"{tool.name} failed, and does not say why.",
        effect_state="none" if tool.effect == "read" else "unknown",
        result=more if more and len(to_json(more, fallback=str)) <= _MOST_OF_A_FAILURE else None,
    )


def _is_same(text: str, structure: object) -> bool:
    """Return whether a text is only the JSON of the structure, as servers write it for older clients."""
    try:
        return bool(json.loads(text) == structure)
    except (ValueError, RecursionError):
        return False


def _part_of(block: object) -> dict[str, Any]:
    """Return a block as it is, with a file in the place of its bytes. One that no client could read becomes a text."""
    said = {name: value for name, value in block.items() if value is not None} if isinstance(block, dict) else {}
    match said:
        case {"type": "text", "text": str()}:
            return said
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            media_type = said.get("mimeType")
            return _with_file(
                said, "data", _file(_MEDIA[kind], data, media_type if isinstance(media_type, str) else None)
            )
        case {"type": "resource", "resource": {"uri": str()} as resource}:
            return _resource(said, {name: value for name, value in resource.items() if value is not None})
        case {"type": "resource_link", "uri": str(uri)}:
            return {"name": uri, **said}
        case _:
            return {"type": "text", "text": block if isinstance(block, str) else to_json(block, fallback=str).decode()}


def _resource(said: dict[str, Any], resource: dict[str, Any]) -> dict[str, Any]:
    if "_meta" in resource:
        resource["resourceMeta"] = resource.pop("_meta")
    part = {**{name: value for name, value in said.items() if name != "resource"}, **resource, "type": "resource"}
    if isinstance(resource.get("text"), str) or not isinstance(blob := resource.get("blob"), str):
        return {**part, "text": words_of(resource.get("text", ""))} if "text" not in resource else part
    media_type = resource.get("mimeType")
    return _with_file(part, "blob", _file(File, blob, media_type if isinstance(media_type, str) else None))


def _with_file(part: dict[str, Any], member: str, file: File | None) -> dict[str, Any]:
    rest = {name: value for name, value in part.items() if name != member}
    if file is not None:
        return {**rest, "file": file}
    return {"type": "text", "text": f"({part['type']} without readable data: {words_of(rest)})"}


def _file(kind: type[File], data: str, media_type: str | None) -> File | None:
    """Return the bytes with their real type: servers name wrong ones. They may be a `data:` URL, in lines, or unpadded."""
    written = data.partition(",")[2] if data.startswith("data:") else data
    plain = _BLANKS.sub("", written).translate(_URL_SAFE).rstrip("=")
    try:
        content = b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    for made, said in ((kind, media_type), (kind, None), (File, None)):
        try:
            return made(content, said)
        except ValueError:
            continue
    return None
