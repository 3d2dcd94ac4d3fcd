"""How far a call is, as its caller follows it: over the connection on which results come, and only while somebody asks."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import ValidationError

from toolfleet_registry.progress import Progress
from toolfleet_tasks.inbox import Inbox


async def follow_progress(inbox: Inbox, call_id: str, ending: "asyncio.Future[Any]") -> AsyncGenerator[Progress]:
    """What the call says, beginning with the latest, until `ending`. Who is slow misses what lies in between."""
    news = asyncio.Event()
    latest: Progress | None = None

    def hear(content: bytes) -> None:
        nonlocal latest
        latest = read_progress(content) or latest
        news.set()

    def stop(_: object) -> None:
        news.set()

    ending.add_done_callback(stop)
    shown: Progress | None = None
    try:
        with inbox.watches.watching(inbox.progress_channel(call_id), hear):
            while not ending.done():
                await news.wait()
                news.clear()
                if latest is not None and latest != shown:
                    shown = latest
                    yield shown
    finally:
        ending.remove_done_callback(stop)


def read_progress(content: bytes | None) -> Progress | None:
    """What a worker has written; `None` for nothing, and for what is no such thing."""
    try:
        return None if content is None else Progress.model_validate_json(content)
    except ValidationError:
        return None
