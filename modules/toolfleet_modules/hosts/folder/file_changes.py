"""Tells when the files of a folder may have changed, as soon as the machine says so, and every few seconds in any case."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from watchfiles import Change, awatch

_STEP_MS = 50  # without a change, after which those before are told
_RESCAN_SECONDS = 5.0  # for file systems that say nothing, and folders that come back


async def file_changes(folder: Path, *, debounce_ms: int) -> AsyncGenerator[None]:
    """Yield after changes, gathered for `debounce_ms` at most, and after every 5 s without."""
    while True:
        try:
            async for _ in awatch(
                folder,
                watch_filter=_is_source,
                debounce=max(debounce_ms, _STEP_MS),
                step=min(debounce_ms, _STEP_MS) or 1,
                rust_timeout=int(_RESCAN_SECONDS * 1000),
                yield_on_timeout=True,
                recursive=False,
            ):
                yield
                if not await asyncio.to_thread(folder.is_dir):
                    break  # one that comes back is another, of which nothing would be told
        except OSError:
            pass
        await asyncio.sleep(_RESCAN_SECONDS / 5)
        yield


def _is_source(change: Change, path: str) -> bool:
    del change
    return path.endswith((".py", "requirements.txt"))
