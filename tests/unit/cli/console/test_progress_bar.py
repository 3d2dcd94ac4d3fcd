"""The bar that a command shows while its call runs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolfleet_cli.console import progress_bar


class Broken:
    """A call whose progress nobody can read."""

    tool_name = "owls.count"

    async def progress(self) -> AsyncIterator[Any]:
        self.was_asked = True
        for step in ("no step",):  # which has no share
            yield step


async def test_a_fault_of_the_bars_is_none_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is what counts."""
    monkeypatch.setattr(progress_bar, "_PATIENCE_SECONDS", 0.0)
    handle: Any = Broken()
    async with asyncio.timeout(20), progress_bar.progress_bar(handle):
        while not hasattr(handle, "was_asked"):  # noqa: ASYNC110 - the bar's task sets it
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
