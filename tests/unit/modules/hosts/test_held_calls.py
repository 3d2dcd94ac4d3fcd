"""How long a call is held whose server may ask in the middle of it."""

import asyncio
from typing import Any

import pytest

from toolfleet_modules.hosts.mcp.questions import Ask, Ears, HeldCalls

pytestmark = pytest.mark.asyncio

SECONDS = 0.05


async def silent(_: Ask, __: Ears) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def test_whoever_waits_for_a_call_ends_it() -> None:
    """By the one clock that the call has: its server is silent, and nobody was asked anything."""
    calls = HeldCalls()
    held = calls.begun("call-1", SECONDS, Ears(lambda *_: None, None), silent)
    waiting = asyncio.ensure_future(calls.next_stop(held))
    asyncio.get_running_loop().call_later(SECONDS + 0.01, waiting.cancel)  # its clock is a moment behind

    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_call_for_which_nobody_waits_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment after it."""
    monkeypatch.setattr("toolfleet_modules.hosts.mcp.questions._MORE_SECONDS", 0.0)
    held = HeldCalls().begun("call-1", SECONDS, Ears(lambda *_: None, None), silent)

    with pytest.raises(TimeoutError):
        await held.next_stop()
