"""Where calls begin: each once, however often and in however many processes it is asked for."""

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Protocol

from toolfleet_registry.sdk.claim import Claim, Store, StoreAway
from toolfleet_registry.sdk.failures import ModuleBusy
from toolfleet_registry.sdk.replies import Record
from toolfleet_registry.sdk.reply import Reply
from toolfleet_registry.sdk.threads import NotBegun
from toolfleet_registry.sdk.work import Work

_log = logging.getLogger("toolfleet.sdk")

_LOOK_SECONDS = (0.05, 1.0)  # between two looks at a call that runs in another process: at first, and at most
_AWAY_SECONDS = 2  # until the store may be back
_MOST_UNANSWERED = 10_000  # calls that the store's being away may have left a writing of


class CallRefused(Exception):
    """No call is run for this request. The message says why."""


class KeyReused(CallRefused):
    """The call id is that of another request."""


class Runnable(Protocol):
    """A tool with its arguments."""

    @property
    def name(self) -> str:
        """The tool's."""
        ...

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run does nothing more."""
        ...

    def run(self) -> Coroutine[Any, Any, Reply]:
        """One run."""
        ...


class Desk:
    """The calls of one module in this process, with their records in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unanswered = OrderedDict[str, str]()  # call ids, and the token that perhaps was written and never used

    async def settle(self, work: Work, tool: Runnable) -> Reply:
        """Run the call once, or find what it came to.

        Raises `CallRefused`, or what turns the call away: `ModuleBusy`. With the store away, what may be repeated runs
        without memory, and nothing else begins. Is not to be cancelled: `Work.stop` stops the tool.
        """
        call_id = work.context.call_id
        if call_id is None:
            return await _ended(work, tool)
        claim = Claim(self._store, call_id, work.fingerprint, is_repeatable=tool.is_repeatable)
        try:
            known = await self._begin(claim, work, tool)
        except StoreAway as exc:
            _log.warning(
                "%s %s: the store of replies is away: %s", tool.name, "runs" if tool.is_repeatable else "waits", exc
            )
            if not tool.is_repeatable:
                self._remember(call_id, claim.token)
                raise ModuleBusy(_AWAY_SECONDS) from exc
            return await _ended(work, tool)
        return known or await self._run(claim, work, tool)

    async def answer(self, call_id: str, *, young_seconds: float) -> dict[str, Any]:
        """What `/reconcile` says of a call that began at most `young_seconds` ago, if it ever did."""
        try:
            record = await self._store.get(call_id)
            if record is None and await self._store.complete_since() <= time.time() - young_seconds:
                # Whoever comes with this call from now on is refused: also a request that waits in a socket.
                record = Record("refused", call_id)
                if not await self._store.swap(call_id, None, record):
                    record = await self._store.get(call_id)
        except StoreAway as exc:
            _log.warning("What became of call %s is not known: the store of replies is away: %s", call_id, exc)
            record = None
        return {**_told(record), "call_id": call_id}

    async def _begin(self, claim: Claim, work: Work, tool: Runnable) -> Reply | None:
        """`None` once the call is this process's to run; otherwise what is known of it."""
        call_id = work.context.call_id or ""
        pause, longest = _LOOK_SECONDS
        why = "was not begun in time"
        while not work.is_stopped:
            if await claim.take(None):
                return None
            record = await self._store.get(call_id)
            if record is None:
                continue
            if self._is_unused(call_id, record, work) and await claim.take(record.token):
                return None
            verdict = _judged(record, work, tool)
            if isinstance(verdict, Reply):
                return verdict
            if verdict == "again" and await claim.take(record.token):
                return None
            if verdict == "wait":
                why = "is still at work under this call id"
                await work.pause(pause)
                pause = min(2 * pause, longest)
        return _unknown(tool, why)

    def _remember(self, call_id: str, token: str) -> None:
        """The store did not say whether it has written this token: if it has, nothing was begun under it all the same."""
        self._unanswered.pop(call_id, None)
        self._unanswered[call_id] = token
        if len(self._unanswered) > _MOST_UNANSWERED:
            self._unanswered.popitem(last=False)

    def _is_unused(self, call_id: str, record: Record, work: Work) -> bool:
        return record.token == self._unanswered.get(call_id) and record.fingerprint == work.fingerprint

    async def _run(self, claim: Claim, work: Work, tool: Runnable) -> Reply:
        async with claim.kept():
            try:
                reply = await _ended(work, tool)
            except BaseException as exc:
                await claim.end(None if isinstance(exc, ModuleBusy) else "stopped")
                raise
        if reply.surely_nothing:
            await claim.end(None)
        elif reply.is_stopped:
            await claim.end("stopped")
        else:
            await claim.end("done" if reply.is_success else "failed", reply.body)
        return reply


async def _ended(work: Work, tool: Runnable) -> Reply:
    """The tool's reply. Raises `ModuleBusy`."""
    if work.is_stopped:
        return _not_begun(tool)
    try:
        return await work.run(tool.run())
    except NotBegun:
        return _not_begun(tool)
    except asyncio.CancelledError:
        return Reply.stopped(tool.name)


def _judged(record: Record, work: Work, tool: Runnable) -> Reply | str:
    """A reply, `wait`, or `again`: the call may run once more. Raises `CallRefused`."""
    if record.state == "refused":
        raise CallRefused("This call was given up: the fleet was told that it never happens.")
    if record.fingerprint != work.fingerprint:
        raise KeyReused("This Idempotency-Key was used for another request.")
    if record.state == "running" and record.until > time.time():
        return "wait"
    if record.state == "done" or (record.state == "failed" and not tool.is_repeatable):
        return Reply(record.reply, is_success=record.state == "done")
    if tool.is_repeatable:
        return "again"
    return _unknown(tool, "was begun under this call id before, and nobody knows how far it came")


def _not_begun(tool: Runnable) -> Reply:
    return Reply.failure(tool.name, f"{tool.name} was not begun in time.", effect_state="none")


def _unknown(tool: Runnable, why: str) -> Reply:
    return Reply.failure(tool.name, f"{tool.name} {why}; it was not run again.", effect_state="unknown")


def _told(record: Record | None) -> dict[str, Any]:
    if record is None or record.state == "stopped":
        return {"state": "unknown"}
    if record.state in {"done", "failed"}:
        return {**json.loads(record.reply), "state": "done"}
    if record.state == "refused":
        return {"state": "none"}
    return {"state": "running" if record.until > time.time() else "unknown"}
