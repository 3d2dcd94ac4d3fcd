"""Reads a response as it comes in: its status, its header, and its body a piece at a time."""

from http import HTTPStatus
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from toolfleet_workers.executors.http.no_reply import ReplyBroken

if TYPE_CHECKING:
    from toolfleet_workers.executors.http_client.connection import Connection

_MAX_HEADER_BYTES = 2**16  # with what follows the body
_SEPARATORS_BYTES = len(b": \r\n")


class Response:
    """One response. `status` and the fields of its header are there when `has_head` is, the body when `is_whole` is.

    It `keeps_connection` if another request may follow. Of its body `unread_bytes` wait to be read.
    """

    __slots__ = (
        "_body",
        "_ends_with_connection",
        "_fields",
        "_fields_bytes",
        "_is_in_fields",
        "_parser",
        "_source",
        "_unparsed_bytes",
        "has_head",
        "is_whole",
        "keeps_connection",
        "status",
        "unread_bytes",
    )

    def __init__(self, source: "Connection") -> None:
        self.status = 0
        self.has_head = self.is_whole = self.keeps_connection = False
        self.unread_bytes = 0
        self._source = source
        self._body: list[bytes] = []
        self._ends_with_connection = False  # as it has no length
        self._fields: dict[bytes, bytes] = {}  # by name in lower case
        self._fields_bytes = 0
        self._is_in_fields = True  # of which the parser keeps what has no end yet
        self._unparsed_bytes = 0  # that it may have kept
        self._parser = HttpResponseParser(self)
        # What simple servers send, and what cannot be taken for anything else: folded fields and control characters in
        # them, lines without a carriage return, blanks after a chunk's length.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    def field(self, name: str) -> str | None:
        """Implements `ModuleResponse.field`."""
        value = self._fields.get(name.encode())
        return None if value is None else value.decode(errors="replace")

    async def read_chunk(self) -> bytes:
        """Implements `ModuleResponse.read_chunk`."""
        while not self._body and not self.is_whole:
            await self._source.more()
        chunk = b"".join(self._body)
        self._body.clear()
        self.unread_bytes = 0
        return chunk

    def release(self) -> None:
        """Implements `ModuleResponse.release`."""
        self._source.release()

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what was sent next. Raises `ReplyBroken`."""
        if self._is_in_fields and self._unparsed_bytes > _MAX_HEADER_BYTES:
            raise ReplyBroken
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self.is_whole:
                raise ReplyBroken from None
            self.keeps_connection = False  # what is left over must not become the next call's reply
        if self.is_whole:
            self._parser = _SPENT

    def end(self) -> None:
        """End the response: a body without a length is whole then."""
        self._parser = _SPENT
        self.is_whole = self.is_whole or self._ends_with_connection

    # What the parser calls. An error that is raised here stops it.

    def on_message_begin(self) -> None:
        """Start a response; raises for an unrequested one after it."""
        if self.is_whole:
            raise ReplyBroken

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the header, or one that follows the body: of those we need none."""
        self._fields_bytes += _SEPARATORS_BYTES + len(name) + len(value)
        # Of what the leniency lets pass, these could make two readers understand two things.
        if self._fields_bytes > _MAX_HEADER_BYTES or b"\0" in value or name[-1:].isspace():
            raise ReplyBroken
        if not self.has_head:
            name, fields = name.lower(), self._fields
            fields[name] = b"%b, %b" % (fields[name], value.strip()) if name in fields else value.strip()

    def on_headers_complete(self) -> None:
        """The header has ended: ours, or one that says that ours is still to come."""
        status = self._parser.get_status_code()
        if status == HTTPStatus.SWITCHING_PROTOCOLS or status < HTTPStatus.CONTINUE:
            raise ReplyBroken
        if status < HTTPStatus.OK:
            return
        coding = self._fields.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise ReplyBroken
        self.status = status
        self.has_head = True
        self._is_in_fields = False
        self._ends_with_connection = coding is None and b"content-length" not in self._fields

    def on_body(self, part: bytes) -> None:
        """Some of the body."""
        if not self.has_head:  # an interim response has none; it would not be read, and so nothing bound it
            raise ReplyBroken
        self._body.append(part)
        self.unread_bytes += len(part)
        self._is_in_fields = False

    def on_chunk_header(self) -> None:
        """A chunk begins: if it has nothing in it, fields follow."""
        self._is_in_fields = True
        self._unparsed_bytes = 0

    def on_message_complete(self) -> None:
        """All is there, or nothing yet."""
        if self.has_head:
            self.is_whole = True
            self.keeps_connection = self._parser.should_keep_alive()
        else:
            self._fields.clear()
            self._fields_bytes = self._unparsed_bytes = 0


_SPENT = HttpResponseParser(object())  # in place of one that refers to its response, for ever
