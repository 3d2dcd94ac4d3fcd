"""Follows a call's progress for its caller: over the connection of results, and only while it is read."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import ValidationError

from toolfleet_registry.contracts.progress import Progress
from toolfleet_tasks.messages.signatures import split_json
from toolfleet_tasks.results.listener import ResultListener
from toolfleet_tasks.results.verifier import Verifier


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
