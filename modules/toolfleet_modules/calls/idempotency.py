"""Runs each call once, however often it is requested, also in several processes, and answers what became of it.

A call that its module has accepted continues by itself: its follower knows where it is, until the store has its end.
"""

import asyncio
import json
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from toolfleet_modules.calls.reply import Follower, Reply, StatusAnswer, said_later
from toolfleet_modules.calls.work import ServedRun, Work
from toolfleet_registry.contracts.call_context import progress_of
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.errors import StoreAway
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.once.port import PatientStore, Record, State, TokenSeries, new_token
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.shared_timers import shared_timers

_log = logging.getLogger("toolfleet.sdk")

# How long a process may be silent before its calls count as those of a dead one: a blocked loop must not reach that.
LEASE_SECONDS = 12.0
RENEW_SECONDS = 4.0

_TRIES_SECONDS = (0.1, 0.5)

_POLL_SECONDS = (0.05, 1.0)  # between two looks at a call that runs in another process: at first, and at most
_AWAY_SECONDS = 2  # until the store may be back
_MOST_LATEST = 10_000
_MOST_UNANSWERED = 10_000  # calls whose last write may or may not have reached the store

FOLLOW_SECONDS = 4.0  # for one answer of the follower's; the fleet waits 5 s for a status
_UNKNOWN = {"state": "unknown"}


class RunClaim:
    """A call that was started here. Its record says so for `LEASE_SECONDS` after the last renewal."""

    def __init__(self, store: PatientStore, call_id: str, fingerprint: str, *, is_repeatable: bool) -> None:
        self._store = store
        self._call_id = call_id
        self._is_first = True
        self._is_kept = False
        self._renewing: asyncio.Task[None] | None = None
        self._live_until = math.inf
        until = machine_clock.wall() + LEASE_SECONDS
        self._tokens = TokenSeries()
        self._record = Record("running", self._tokens.next(0), fingerprint, until, is_repeatable=is_repeatable)

    @property
    def token(self) -> str:
        """The token of its record, if it was written."""
        return self._record.token

    def live_until(self) -> float:
        """Return until when no other process can have taken the call over, on the clock that counts suspension."""
        return self._live_until

    async def take(self, seen: Record | None, attempt: int, *, is_first: bool = True) -> bool:
        """Start the call's `attempt`th attempt, replacing the record that was `seen`.

        `is_first`: nothing was ever started before. Raises `StoreAway`: it may have started all the same.
        """
        self._is_first = is_first
        self._record = replace(
            self._record, token=self._tokens.next(attempt), until=machine_clock.wall() + LEASE_SECONDS
        )
        self._live_until = fleet_clock.suspend_aware() + LEASE_SECONDS
        return await self._store.swap(self._call_id, seen.token if seen else None, self._record)

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None]:
        """Renew the record meanwhile, as far as the store answers."""
        self._is_kept = True
        timer = shared_timers(asyncio.get_running_loop()).call_later(RENEW_SECONDS, self._begin_renewing)
        try:
            yield
        finally:
            self._is_kept = False  # also for a store that loses the cancellation
            timer.cancel()
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.gather(self._renewing, return_exceptions=True)

    async def undo(self) -> None:
        """Undo the start, so that the call may start again: except for attempts before this one, if there are any."""
        if self._record.attempt <= 1:
            await self.end(None)
        else:
            await self.end("open" if self._is_first else "stopped")

    async def end(self, state: State | None, reply: str = "") -> None:
        """Write how it ended; `None`: nothing, as if it had never started."""
        token = self._tokens.next(self._record.attempt)
        record = state and replace(self._record, state=state, token=token, until=0, reply=reply)
        for wait in (*_TRIES_SECONDS, None):
            try:
                if not await self._store.swap(self._call_id, self._record.token, record or None):
                    _log.warning("The reply of call %s is not kept: another process has taken it over.", self._call_id)
            except StoreAway as exc:
                if wait is None:
                    _log.warning("The reply of call %s is not kept: %s", self._call_id, exc)
                    return
                await asyncio.sleep(wait)
            else:
                return

    def _begin_renewing(self) -> None:
        """Start renewing when it is time: a call that ends soon needs no task for it."""
        self._renewing = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        """Renew the record.

        A renewal without an answer may have been written or not: the token stays the same, so both are good.
        """
        while self._is_kept:
            renewed = replace(self._record, until=machine_clock.wall() + LEASE_SECONDS)
            live_until = fleet_clock.suspend_aware() + LEASE_SECONDS
            try:
                if not await self._store.swap(self._call_id, renewed.token, renewed):
                    self._live_until = -math.inf
                    return
                self._live_until = live_until
            except StoreAway as exc:
                _log.warning("The lease of call %s is not renewed: %s", self._call_id, exc)
            await asyncio.sleep(RENEW_SECONDS)


class RunRefused(Exception):
    """No call is run for this request. The message says why."""


class KeyReused(RunRefused):
    """The call id is that of another request."""


class IdempotentRuns:
    """The calls of one module in this process, with their records in a store that several processes may share."""

    def __init__(self, store: PatientStore) -> None:
        self._store = store
        self._latest = OrderedDict[str, int]()  # attempts that were seen, by call id, of those with more than one
        self._unanswered = OrderedDict[str, str]()  # call ids, and the token that perhaps was written and never used

    async def settle(self, work: Work, tool: ServedRun[Any]) -> Reply:
        """Run the call once, or return the reply that it had before.

        Must not be cancelled: `Work.stop` stops the tool. While the store is away, a call that can be repeated runs
        without memory, and no other call starts.

        Args:
            work: The call's work, which the requests for it share.
            tool: The run of the tool.

        Returns:
            The reply.

        Raises:
            RunRefused: No call is run for this request.
            ModuleBusy: The call has not started, and can be repeated later.
        """
        call_id = work.key
        if call_id is None:
            return await _ended(work, tool)
        claim = RunClaim(self._store, call_id, work.fingerprint, is_repeatable=tool.is_repeatable)
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

    async def admits(self, call_id: str | None, attempt: int, *, is_harmless: bool) -> bool:
        """Note an attempt of a call, and compare it with the attempts that were seen here.

        Other processes that share the store learn of a later attempt than the first.

        Args:
            call_id: The call's id; `None` for a call without one.
            attempt: The number of the attempt; 0 if the request states none.
            is_harmless: Whether the call may run at any time, so that other processes need not know.

        Returns:
            Whether no later attempt of the call was seen.
        """
        if call_id is None or not attempt:
            return True
        latest = self._latest.pop(call_id, 0)
        if max(attempt, latest) > 1:
            self._latest[call_id] = max(attempt, latest)
            if len(self._latest) > _MOST_LATEST:
                self._latest.popitem(last=False)
        if attempt > max(latest, 1) and not is_harmless:
            try:
                await self._mark(call_id, attempt)
            except StoreAway as exc:
                _log.warning("Other processes do not know of attempt %s of call %s: %s", attempt, call_id, exc)
        return attempt >= latest

    async def answer(self, call_id: str, *, young_seconds: float) -> dict[str, Any]:
        """Return the answer of `/reconcile` for a call, or for its part of this key.

        Args:
            call_id: The call's id, or the key of its part.
            young_seconds: How long ago the call can have started at most, if it ever did.

        Returns:
            `call_id`, `state`, and what belongs to the state. After the answer `none` the call is never run.
        """
        try:
            record = await self._store.get(call_id)
            is_begun = record is not None and record.state != "open"
            if not is_begun and await self._store.complete_since() <= machine_clock.wall() - young_seconds:
                # Any request with this call is refused from now on: also one that waits in a socket.
                refused = Record("refused", call_id)
                is_refused = await self._store.swap(call_id, record.token if record else None, refused)
                record = refused if is_refused else await self._store.get(call_id)
        except StoreAway as exc:
            _log.warning("The outcome of call %s is not known: the store of replies is away: %s", call_id, exc)
            record = None
        return {**_reconciliation(record), "call_id": call_id}

    async def _begin(self, claim: RunClaim, work: Work, tool: ServedRun[Any]) -> Reply | None:
        """Return `None` once the call is this process's to run; otherwise the known reply."""
        call_id = work.key or ""
        pause, longest = _POLL_SECONDS
        why = "was not begun in time"
        while not work.is_stopped:
            if await claim.take(None, work.attempt):
                return None
            record = await self._store.get(call_id)
            if record is None:
                continue
            if self._is_unused(call_id, record, work) and await claim.take(record, work.attempt):
                return None
            verdict = _judged(record, work, tool)
            if isinstance(verdict, Reply):
                return verdict
            if verdict == "again" and await claim.take(record, work.attempt, is_first=record.state == "open"):
                return None
            if verdict == "wait":
                why = "is still at work under this call id"
                await work.pause(pause)
                pause = min(2 * pause, longest)
        return _unknown(tool, why)

    async def _mark(self, call_id: str, attempt: int) -> None:
        """Write an attempt to the store, unless that knows of a later one, or of one that has started."""
        mark = Record("open", new_token(attempt))
        if await self._store.swap(call_id, None, mark):
            return
        found = await self._store.get(call_id)
        if found is not None and found.state == "open" and found.attempt < attempt:
            await self._store.swap(call_id, found.token, mark)

    def _remember(self, call_id: str, token: str) -> None:
        """Remember a token that the store may or may not have written: in either case nothing was started under it."""
        self._unanswered.pop(call_id, None)
        self._unanswered[call_id] = token
        if len(self._unanswered) > _MOST_UNANSWERED:
            self._unanswered.popitem(last=False)

    def _is_unused(self, call_id: str, record: Record, work: Work) -> bool:
        return record.token == self._unanswered.get(call_id) and record.fingerprint == work.fingerprint

    async def _run(self, claim: RunClaim, work: Work, tool: ServedRun[Any]) -> Reply:
        work.context._held_until = claim.live_until
        async with claim.kept():
            try:
                reply = await _ended(work, tool)
            except BaseException as exc:
                await (claim.undo() if isinstance(exc, ModuleBusy) else claim.end("stopped"))
                raise
        if reply.surely_nothing:
            await claim.undo()
        elif reply.is_stopped:
            await claim.end("stopped")
        elif reply.handle or reply.is_question:
            await claim.end("asked" if reply.is_question else "accepted", reply.body)
        else:
            await claim.end("done" if reply.is_success else "failed", reply.body)
        return reply


async def _ended(work: Work, tool: ServedRun[Any]) -> Reply:
    """Run the tool, and return its reply. Raises `ModuleBusy`."""
    if work.is_stopped:
        return not_begun(tool.name)
    try:
        reply = await work.run(tool.run())
    except NotBegun:
        return not_begun(tool.name)
    except asyncio.CancelledError:
        return Reply.stopped(tool.name, is_late=work.is_late)
    # A tool has clocks of its own that end with ours, and fails by them, or by what it does when it is cancelled.
    return reply.late() if work.is_over else reply


def _judged(record: Record, work: Work, tool: ServedRun[Any]) -> Reply | str:
    """Return a reply, or `wait`, or `again`: the call may run once more. Raises `RunRefused`."""
    if record.state == "refused":
        raise RunRefused("This call was given up: the fleet was told that it never happens.")
    if 0 < work.attempt < record.attempt:
        return overtaken(tool.name)
    if record.state == "open":
        return "again"
    if record.fingerprint != work.fingerprint:
        raise KeyReused("This Idempotency-Key was used for another request.")
    if record.state == "running" and record.until > machine_clock.wall():
        return "wait"
    if record.state in {"done", "accepted", "asked"} or (record.state == "failed" and not _runs_again(tool, record)):
        return Reply.kept(record.reply, is_success=record.state == "done")
    if record.state == "failed" or tool.is_repeatable:
        return "again"
    return _unknown(tool, "was begun under this call id before, and how far it came is unknown")


def not_begun(name: str) -> Reply:
    """Return the reply to an attempt that comes too late: it did nothing, and another may follow."""
    return Reply.failure(name, f"{name} was not begun in time.", effect_state="none")


def overtaken(name: str) -> Reply:
    """Return the reply to an attempt that another has overtaken: it did nothing."""
    return Reply.failure(name, f"{name} was not begun: a later attempt of this call has come.", effect_state="none")


def _unknown(tool: ServedRun[Any], why: str) -> Reply:
    return Reply.failure(tool.name, f"{tool.name} {why}; it was not run again.", effect_state="unknown")


def _runs_again(tool: ServedRun[Any], record: Record) -> bool:
    """Return whether a call that failed runs once more: its tool allows that always, or did in its reply."""
    return tool.reruns_failures or json.loads(record.reply).get("retryable") is True


def _reconciliation(record: Record | None) -> dict[str, Any]:
    if record is None or record.state == "stopped":
        return {"state": "unknown"}
    if record.state in {"done", "failed"}:
        return {**said_later(record.reply), "state": "done"}
    if record.state == "asked":
        return {**json.loads(record.reply), "state": "input_required"}
    if record.state == "refused":
        return {"state": "none"}
    if record.state == "accepted":
        return {"state": "running", "handle": Reply.kept(record.reply).handle}
    return {"state": "running" if record.until > machine_clock.wall() else "unknown"}


class NotFollowed(Exception):
    """The call's state is unknown now: it is asked for again."""


class AcceptedCalls:
    """The calls that one module has accepted: `follower` knows their state, and the store has their ends."""

    def __init__(self, store: PatientStore, follower: Follower) -> None:
        self._store, self._follower = store, follower

    async def status(
        self,
        call_id: str,
        handle: str,
        *,
        cancel: bool = False,
        takes_input: bool = False,
        inputs: CallInputs | None = None,
    ) -> dict[str, Any]:
        """Return the answer of `/status` for a call.

        The call's end is stored; from then on the follower is not asked. A call that asks is ended if its caller takes
        no questions. If the call's record was lost, the follower may still know the call by its handle.

        Args:
            call_id: The call's id.
            handle: The handle under which the module has accepted it.
            cancel: Whether the call is cancelled.
            takes_input: Whether the caller can be asked.
            inputs: The latest answers to the module's questions.

        Returns:
            `call_id`, `state`, and what belongs to the state.

        Raises:
            NotFollowed: The state is unknown now; the fleet asks again.
        """
        record = await self._record(call_id)
        if record is not None and record.state in {"done", "failed"}:
            return {"call_id": call_id, **said_later(record.reply), "state": "done"}
        if record is not None and record.state == "accepted" and Reply.kept(record.reply).handle != handle:
            return {"call_id": call_id, **_UNKNOWN}
        answer = await self._follow(call_id, handle, cancel=cancel, inputs=inputs)
        if answer.state == "input_required" and not takes_input:
            answer = await self._unanswerable(call_id, handle)
        return await self._answered(call_id, handle, record, answer)

    async def became(self, call_id: str, handle: str) -> dict[str, Any]:
        """Return the answer of `/reconcile` for an accepted call. One that asks is `running` here; `/status` has its question.

        Raises:
            NotFollowed: The state is unknown now.
        """
        answer = await self.status(call_id, handle, takes_input=True)
        if answer["state"] != "input_required":
            return answer
        return {"call_id": call_id, **_in_json(StatusAnswer.running(), handle)}

    async def _answered(self, call_id: str, handle: str, record: Record | None, answer: StatusAnswer) -> dict[str, Any]:
        if answer.state == "input_required" and answer.reply is not None:
            asked = json.loads(answer.reply.body)
            del asked["tool_name"]
            return {"call_id": call_id, **asked, "state": answer.state}
        if answer.reply is None:
            return {"call_id": call_id, **_in_json(answer, handle)}
        body = answer.reply.body
        if record is not None and record.state == "accepted":
            body = await self._keep(call_id, record, answer.reply)
        return {"call_id": call_id, **json.loads(body), "state": "done"}

    async def _record(self, call_id: str) -> Record | None:
        try:
            return await self._store.get(call_id)
        except StoreAway as exc:
            _log.warning("The record of call %s is not known: the store of replies is away: %s", call_id, exc)
            return None

    async def _unanswerable(self, call_id: str, handle: str) -> StatusAnswer:
        """End a call with a question that its caller cannot answer; it may have ended by itself."""
        answer = await self._follow(call_id, handle, cancel=True)
        if answer.reply is not None and answer.reply.is_success:
            return answer
        return StatusAnswer.failed("It asks for more input, and its caller cannot be asked.")

    async def _follow(
        self, call_id: str, handle: str, *, cancel: bool, inputs: CallInputs | None = None
    ) -> StatusAnswer:
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                return await self._follower(call_id, handle, cancel=cancel, inputs=inputs)
        except TimeoutError:
            raise NotFollowed("The call's follower did not answer in time.") from None
        except Exception as exc:  # it is an author's, and may raise anything
            _log.error("The follower of call %s has failed", call_id, exc_info=exc)
            raise NotFollowed(f"The call's follower failed ({type(exc).__name__}); the log says why.") from exc

    async def _keep(self, call_id: str, record: Record, reply: Reply) -> str:
        """Store the reply under the called tool's name, for later requests and repeats, and return it."""
        named = {**json.loads(reply.body), "tool_name": json.loads(record.reply)["tool_name"]}
        body = json.dumps(named, ensure_ascii=False, separators=(",", ":"))
        ended = replace(
            record, state="done" if reply.is_success else "failed", token=new_token(record.attempt), reply=body
        )
        try:
            await self._store.swap(call_id, record.token, ended)  # refused: another process has kept it
        except StoreAway as exc:
            _log.warning("The reply of call %s is not kept: %s", call_id, exc)
        return body


def _in_json(answer: StatusAnswer, handle: str) -> dict[str, Any]:
    if answer.state != "running":
        return {"state": answer.state}
    progress = progress_of(answer.progress, answer.message)
    content: dict[str, Any] = {"state": "running", "handle": handle}
    if progress.fraction is not None or progress.message:
        content |= {"progress": progress.fraction, "message": progress.message}
    if answer.poll_after_seconds is not None:
        content["poll_after_seconds"] = answer.poll_after_seconds
    return content
