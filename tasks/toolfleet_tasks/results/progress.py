"""Follows a running call for its caller, over the connection of results: its progress while it is read, and its log messages."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from toolfleet_registry.contracts.call_context import LogLevel, LogMessage, Progress, is_heard, log_message_in
from toolfleet_tasks.messages.signing import split_json
from toolfleet_tasks.results.listener import ResultListener
from toolfleet_tasks.results.verifier import Verifier

_MOST_MESSAGES = 1000  # of two attempts, and more than they may have: a writer to Redis can write anything
_MOST_BYTES = 64 * 2**10  # of one


async def follow_progress(
    listener: ResultListener, call_id: str, ending: "asyncio.Future[Any]"
) -> AsyncGenerator[Progress]:
    """Yield the call's progress, beginning with the latest, until `ending`. A slow reader misses steps."""
    arrived = asyncio.Event()
    latest: Progress | None = None

    def hear(content: bytes) -> None:
        nonlocal latest
        latest = _judged(listener.verifier, call_id, content) or latest
        arrived.set()

    def stop(_: object) -> None:
        arrived.set()

    ending.add_done_callback(stop)
    shown: Progress | None = None
    try:
        with listener.watches.watching(listener.keys.progress(call_id).encode(), hear):
            while not ending.done():
                await arrived.wait()
                arrived.clear()
                if latest is not None and latest != shown:
                    shown = latest
                    yield shown
    finally:
        ending.remove_done_callback(stop)


async def read_progress(verifier: Verifier, call_id: str, content: bytes | None) -> Progress | None:
    """Parse a worker's progress report of this call; `None` if there is none, or it is not genuine."""
    text, signature = split_json((content or b"").decode(errors="replace"))
    return _parsed(text) if text and await verifier.believes(call_id, "progress", text, signature) else None


def _judged(verifier: Verifier, call_id: str, content: bytes) -> Progress | None:
    """The same at once. What must be looked into before is left out: the next one is not long in coming."""
    text, signature = split_json(content.decode(errors="replace"))
    verdict = verifier.judge(call_id, "progress", text, signature)
    if verdict == "unsure":
        verifier.check_workers_soon()
    elif verdict == "refused":
        verifier.refuse(call_id, "progress", is_signed=signature is not None)
    return _parsed(text) if verdict == "believed" else None


def _parsed(text: str) -> Progress | None:
    try:
        return Progress.model_validate_json(text)
    except ValidationError:
        return None


class HeardLog:
    """The log messages of one call that are of level `least` or above, kept as long as this object.

    Made before the call is published.
    """

    def __init__(self, listener: ResultListener, call_id: str, least: LogLevel) -> None:
        self._call_id = call_id
        self._least: LogLevel = least
        self._verifier = listener.verifier
        self._heard = list[bytes]()
        self._readers = set[asyncio.Event]()
        self._listening = contextlib.ExitStack()
        channel = listener.keys.progress(call_id, "-log").encode()
        self._listening.enter_context(listener.watches.watching(channel, self._hear))

    def close(self, _: object = None) -> None:
        """Hear no more."""
        self._listening.close()

    async def messages(self, ending: "asyncio.Future[Any]") -> AsyncGenerator[LogMessage]:
        """Yield all messages so far, and those to come until `ending`."""
        arrived, read = asyncio.Event(), 0

        def wake(_: object) -> None:
            arrived.set()

        self._readers.add(arrived)
        ending.add_done_callback(wake)
        try:
            while True:
                is_over = ending.done()
                while read < len(self._heard):
                    read += 1
                    if (message := await self._believed(self._heard[read - 1])) is not None:
                        yield message
                if is_over:
                    return
                await arrived.wait()
                arrived.clear()
        finally:
            self._readers.discard(arrived)
            ending.remove_done_callback(wake)

    def _hear(self, content: bytes) -> None:
        if len(self._heard) < _MOST_MESSAGES and len(content) <= _MOST_BYTES:
            self._heard.append(content)
            for reader in self._readers:
                reader.set()

    async def _believed(self, content: bytes) -> LogMessage | None:
        text, signature = split_json(content.decode(errors="replace"))
        if not text or not await self._verifier.believes(self._call_id, "log", text, signature):
            return None
        try:
            message = log_message_in(from_json(text))
        except ValueError:
            return None
        return message if message is not None and is_heard(message.level, self._least) else None
