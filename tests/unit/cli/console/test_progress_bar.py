"""The bar that a command shows while its call runs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.waiting import wait_until
from toolfleet_cli.commands import call


class Broken:
    """A call whose progress nobody can read."""

    tool_name = "owls.count"

    async def progress(self) -> AsyncIterator[Any]:
        self.was_asked = True
        for step in ("no step",):  # which has no share
            yield step


async def test_a_fault_of_the_bars_is_none_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_PATIENCE_SECONDS", 0.0)
    handle: Any = Broken()
    async with call.progress_bar(handle):
        await wait_until(lambda: hasattr(handle, "was_asked"), "the bar has asked")
