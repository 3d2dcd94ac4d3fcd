"""What is asked of a fleet while one of its members dies at a write, and what must hold afterwards."""

import asyncio
import base64
import contextlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from unittest import mock

from aiohttp import web

from bed import clock
from bed.fleet import Bed, Worker
from bed.site import Site
from simulation.kill_points import Row
from support.fleet import SIGNING_KEY
from support.module_server import ModuleServer, Request
from support.modules.works import make_works
from toolfleet import (
    ApprovalNotTaken,
    Approver,
    Caller,
    Conversation,
    Job,
    Poll,
    Schedule,
    ToolCall,
    ToolFleet,
    ToolResult,
)
from toolfleet_cli.local.redis_server import LOOPBACK
from toolfleet_registry.contracts.jobs import Completion
from toolfleet_registry.contracts.programs import ToolProgram
from toolfleet_registry.redis.keys import ApprovalKeys, Keys
from toolfleet_tasks.messages.ids import program_id_of, then_call_id
from toolfleet_tasks.programs import ProgramRecords

T = TypeVar("T")

LEASE_SECONDS = 3
TIMEOUT_SECONDS = 40.0
TOLD_SECONDS = 4 * LEASE_SECONDS
"""A call whose worker dies is told about after so long at the latest, beside what its module takes."""

_UNDISTURBED_SECONDS = 0.2
_LASTS_SECONDS = LEASE_SECONDS + 1.5
_PAUSE_SECONDS = 2 * LEASE_SECONDS + 1
_TAKES = {"retries": 1.0} | dict.fromkeys(("lasts", "fails", "declines"), 3 * _LASTS_SECONDS)
"""How long a call takes at the most that is executed so: a retry's pause is under a second."""
_LATE_TIMEOUT_SECONDS = 2.0
_BOUND = 2
_EXPIRES_SECONDS = 2
_ACTS_SECONDS = 1.2  # others look for news meanwhile
_NEWS = 3  # one after the other: an agent that dies has had one of them more often than not
_MOST_ATTEMPTS = 2
_QUIET_SECONDS = 60.0
_LONGEST_SECONDS = 300.0
_STEP_SECONDS = 0.05
_HEARD_SECONDS = 1.0
"""In that time workers hear that a queue is paused."""
_OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
_OTHER = Caller(user_id="bob", permission="owner", allowed_modules="*")
_SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
_KEYS = Keys()
_QUEUES = ("tools.owls", "tools.works")
_REPEATABLE = {"read", "idempotent"}
_PROGRAM = """
import asyncio
first = await owls__once_works(ref="{}")
more = await asyncio.gather(owls__once_works(ref="{}"), owls__once_works(ref="{}"))
last = await owls__once_asked(ref="{}")
return [first, *more, last]
"""
_DECLINED = "3600"
"""After so many seconds a call may come again: nobody waits so long."""


class Scene:
    """A fleet in which something is asked again and again, and one member dies meanwhile, each time at another write.

    Attributes:
        has_died: Whether the member died, or paused, in the last `play`.
        written: How often a member that may die has written in it.

    """

    settings: Mapping[str, Any] = {}
    has_beat = True

    def __init__(self, row: Row, bed: Bed) -> None:
        self.row, self.bed = row, bed
        self.module = ModuleServer("owls")
        self.effects: defaultdict[str, list[str]] = defaultdict(list)
        self.has_died, self.written = False, 0
        self.running, self.most_running = list[str](), 0  # of calls that last
        self._at_work = list[str]()
        self.look: Callable[..., Any] = bed.redis.client().execute_command
        self._workers: list[Worker] = []
        self._write, self._part = 0, 0.0

    async def open(self) -> None:
        """Start the fleet."""
        self.bed.given |= {
            "visibility_timeout": LEASE_SECONDS,
            "jobs_interval_seconds": 0.5,
            "module_concurrency": {"owls": _BOUND} if self.row.is_bounded else {},
            **self.settings,
        }
        await self.serve()
        self._workers = [await self.bed.worker() for _ in range(self.row.workers)]
        if self.has_beat:
            self._beat = await self.bed.beat()
        self.fleet = await self.bed.agent()

    async def serve(self) -> None:
        """Serve the modules. Each call is executed as its tool says.

        At once, in a while, at its second try, at that in a while, only if that comes without having been asked for, or at its
        first try alone.
        """
        for effect in ("once", "idempotent", "read", "undeclared"):
            declared = {} if effect == "undeclared" else {"effect": effect}
            for how in ("works", "lasts", "retries", "fails", "declines", "repels"):
                self.module.add(f"{effect}_{how}", self._execute, **declared)
        await self.bed.serve(self.module)

    async def play(self, write: int, part: float) -> list[str]:
        """Ask once, while the row's member dies at this write. Returns what did not hold."""
        self._write, self._part, self.has_died = write, part, False
        victims, pauses = self._victims(), self.row.fate == "pauses"
        before = [site.writes for site in victims]
        events = [site.pause_at(write) if pauses else site.die_at(write, part) for site in victims]
        self._replaced = asyncio.create_task(self._replace(victims, events))
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                found = await self.ask(f"{write}-{part}")
        except Exception as exc:  # noqa: BLE001 - whatever it is: the next death may say more
            found = [f"no end: {exc!r}"]
        self.spare()
        self.written = max(
            (site.writes - count for site, count in zip(victims, before, strict=True)), default=self.written
        )
        if self.has_died or any(site.is_dead for site in victims):
            await self._replaced
        self._replaced.cancel()
        return found

    def spare(self) -> None:
        """Have nobody die who has not died yet: what was asked for is over."""
        for site in self._victims():
            site.dies_at = site.pauses_at = None

    async def ask(self, ref: str) -> list[str]:
        """Ask for one thing, wait for its end, and return what did not hold."""
        raise NotImplementedError

    async def close(self) -> list[str]:
        """Return what is left that must not be."""
        found = [f"{queue} has {left}" for queue in _QUEUES if (left := self.look("LLEN", queue))]
        with self.bed.redis.client() as look:
            for key in look.scan_iter(count=1000):
                rule = _KEYS.rule_of(key)
                if rule is None or (not rule.lasting and look.ttl(key) == -1):
                    found.append(f"{key!r} {'is not in keys.py' if rule is None else 'never expires'}")
        return found

    async def by(self, role: str, work: Callable[[ToolFleet], Awaitable[T]]) -> T:
        """Have an agent do something. If it dies of it, the next one does it."""
        if self.row.victim != role:
            return await work(self.fleet)

        async def run() -> T:
            async with ToolFleet(settings=self.bed.settings) as fleet:
                return await work(fleet)

        site = self.bed.site(role)
        dead = asyncio.create_task(site.die_at(self._write, self._part).wait())
        task = site.start(run())
        await asyncio.wait({task, dead}, return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        self.written = site.writes
        if not site.is_dead:
            return task.result()
        self.has_died = True
        return await work(self.fleet)

    async def becomes(self, holds: Callable[[], object], what: str) -> list[str]:
        """Wait until something holds. Returns what does not, if it never does."""
        ends_at = clock.monotonic() + _QUIET_SECONDS
        while not holds():
            if clock.monotonic() > ends_at:
                return [f"{what} does not come"]
            await asyncio.sleep(_STEP_SECONDS)
        return []

    async def is_over(self, call_id: str) -> list[str]:
        """Wait until nobody has anything of a call any more. Returns what is left of it."""
        found = await self.becomes(lambda: not self._held(), "the end of all messages")
        record = self.look("HGETALL", _KEYS.call(call_id))
        if record.get("state") != "done" or "token" in record or "lease" in record:
            found.append(f"its record is {record}")
        places = {
            _KEYS.running("owls"),
            *(_KEYS.caller_limit(lane, _OWNER.user_id) for lane in ("fast", "slow", "all")),
        }
        found += [f"it has a place in {key}" for key in places if self.look("ZSCORE", key, call_id) is not None]
        audit = [fields["line"] for _, fields in self.look("XREVRANGE", _KEYS.audit, "+", "-", "COUNT", 100)]
        if (lines := sum(f'"call_id":"{call_id}"' in line for line in audit)) != 1:
            found.append(f"it has {lines} lines in the audit")
        return found + [f"{each}: {left}" for each in [*_QUEUES, "unacked"] if (left := self._left_in(each))]

    def executed_well(self, ref: str, result: ToolResult, effect: str, how: str = "works") -> list[str]:
        """Return what does not hold of how often a call was executed, and what was told about it."""
        call_id, retries = result.audit.call_id or "", how not in {"works", "lasts"}
        keys = [
            headers["idempotency-key"]
            for headers, request in zip(self.module.headers, self.module.requests, strict=True)
            if request["arguments"].get("ref") == ref
        ]
        done, found = self.effects[ref], list[str]()
        if set(keys) - {call_id}:
            found.append(f"{call_id} was sent under the keys {keys}")
        if len(done) > (1 if effect not in _REPEATABLE else _MOST_ATTEMPTS) or len(keys) > _MOST_ATTEMPTS:
            found.append(f"executed {len(done)} times, in {len(keys)} requests")
        if len(keys) > result.audit.attempts:
            found.append(f"sent {len(keys)} times, and told of {result.audit.attempts} attempts")
        if result.success and result.result not in done:
            found.append(f"told {result.result}, executed {done}")
        # The worker may have died before its attempt, which nobody can know: then the module's refusal has met the last one.
        codes = (
            {"outcome_unknown", "module_error", "busy"} if retries and effect in _REPEATABLE else {"outcome_unknown"}
        )
        is_unknown = result.error_code in codes and result.effect_state == "unknown"
        may_be_unknown = self.has_died and (effect not in _REPEATABLE or retries)
        is_declined = how == "declines" and (result.error_code, result.effect_state, done) == ("busy", "none", [])
        if not result.success and not is_declined and not (is_unknown and may_be_unknown):
            found.append(f"ended as {result.error_code} {result.effect_state}: {result.error}")
        has_letter = bool(self.look("HEXISTS", _KEYS.dead, call_id))
        if has_letter == (result.success or is_declined) and not (is_declined and self.has_died):
            found.append(f"{'a' if has_letter else 'no'} dead letter of {result.error_code or 'success'}")
        return found

    def _victims(self) -> list[Site]:
        match self.row.victim:
            case "worker":
                return [worker.site for worker in self._workers]
            case "beat":
                return [self._beat]
            case _:
                return []

    async def _replace(self, victims: list[Site], events: list[asyncio.Event]) -> None:
        """Start another one when one has died. The others do not die then."""
        if not events:
            return
        deaths = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
        self.has_died = True
        for site, death in zip(victims, deaths, strict=True):
            if not death.done():
                site.dies_at = site.pauses_at = None
                death.cancel()
        if self.row.fate == "pauses":
            await asyncio.sleep(_PAUSE_SECONDS)
            for site in victims:
                site.resume()
            return
        await self.replace()

    async def replace(self) -> None:
        """Start what has died again."""
        if self.row.victim == "beat":
            self._beat = await self.bed.beat()
        for place, worker in enumerate(self._workers):
            if worker.site.is_dead:
                self._workers[place] = await self.bed.worker()

    async def _execute(self, request: Request) -> web.StreamResponse | dict[str, Any]:
        ref, how = request["arguments"]["ref"], request["tool_name"].rpartition("_")[2]
        tries = self._times_sent(ref)
        if how in {"lasts", "fails"} or (how == "declines" and tries > 1):
            self.running.append(ref)
            self.most_running = max(self.most_running, len(self.running))
            try:
                await asyncio.sleep(_LASTS_SECONDS)
            finally:
                self.running.remove(ref)
        if how == ("declines" if tries == 1 else "repels"):
            return web.Response(status=503, headers={"Retry-After": _DECLINED if tries == 1 else "0"}, text="later")
        if how in {"retries", "fails"} and tries == 1:
            does_no_harm = request["tool_name"].startswith(("owls.read", "owls.idempotent"))
            return web.Response(status=500 if does_no_harm else 503, headers={"Retry-After": "0"}, text="later")
        self.effects[ref].append(f"{ref} {tries}")
        return {"success": True, "result": self.effects[ref][-1]}

    def _times_sent(self, ref: str) -> int:
        return sum(each["arguments"].get("ref") == ref for each in self.module.requests)

    def _held(self) -> bool:
        return any(self._left_in(each) for each in [*_QUEUES, "unacked"])

    def _left_in(self, key: str) -> list[str]:
        """Return the calls' messages of a queue, or those that workers hold. Beat's own come and go."""
        found = self.look("HVALS" if key == "unacked" else "LRANGE", key, *(() if key == "unacked" else (0, -1)))
        return [message for message in found if '"tools.' in message or key != "unacked"]


class CallScene(Scene):
    """One call. With two workers it has an idempotency key, and is asked for again afterwards."""

    has_beat = False

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        effect, _, how = self.row.tool.partition("_")
        key = ref if self.row.victim == "agent" or self.row.workers > 1 else None
        call = ToolCall(tool_name=f"owls.{self.row.tool}", arguments={"ref": ref}, idempotency_key=key)
        began_at = clock.monotonic()
        result = await self.by("agent", lambda fleet: fleet.call(call, _OWNER, timeout=TIMEOUT_SECONDS))
        took, sent = clock.monotonic() - began_at, self._times_sent(ref)
        if self.row.fate == "pauses" and self.has_died:
            await self._replaced  # it goes on, and may do so with what is over
            await asyncio.sleep(LEASE_SECONDS)
        found = await self.is_over(result.audit.call_id or "")
        found += self.executed_well(ref, result, effect, how)
        if self._times_sent(ref) > sent:
            found.append("begun again after its end was told")
        if self.row.victim == "agent" and not result.success:
            found.append(f"ended as {result.error_code}, and no worker has died")
        if took > (TOLD_SECONDS if self.has_died else _UNDISTURBED_SECONDS) + _TAKES.get(how, 0):
            found.append(f"told after {took:.1f} s")
        if key is not None and result.effect_state != "none":  # else it is free
            count, again = len(self.module.requests), await self.fleet.call(call, _OWNER, timeout=TIMEOUT_SECONDS)
            if (again.success, again.result, again.error) != (result.success, result.result, result.error):
                found.append(f"told {result}, and again {again}")
            if len(self.module.requests) != count:
                found.append("executed again for who asks under its key")
            other = call.model_copy(update={"arguments": {"ref": f"{ref}-other"}})
            refused = await self.fleet.call(other, _OWNER, timeout=TIMEOUT_SECONDS)
            if refused.error_code != "conflict" or len(self.module.requests) != count:
                found.append(f"another call under its key is told {refused}")
        return found


class CrowdScene(Scene):
    """More calls at once than their module may run, if that is bounded: what the dead have sent goes on. Else their ends leave together."""

    has_beat = False

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        refs, tool, self.most_running = [f"{ref}-{number}" for number in range(_BOUND + 1)], self.row.tool, 0
        calls = [ToolCall(tool_name=f"owls.{tool}", arguments={"ref": each}) for each in refs]
        results = await self.fleet.call_many(calls, _OWNER, timeout=TIMEOUT_SECONDS)
        found = list[str]()
        for each, result in zip(refs, results, strict=True):
            found += await self.is_over(result.audit.call_id or "")
            found += self.executed_well(each, result, tool.partition("_")[0])
        if self.row.is_bounded and self.most_running > _BOUND:
            found.append(f"{self.most_running} at once")
        return found


class LineScene(Scene):
    """Calls that wait for each other, of two users: they run in the order in which they were made, and never two at once."""

    has_beat = False

    async def serve(self) -> None:
        """Implements `Scene.serve`, with the argument that has calls wait."""
        line = {"concurrency_key": "line", "input_schema": {"type": "object", "properties": {"line": {}}}}
        for effect in ("once", "read"):
            for how in ("works", "lasts", "retries"):
                self.module.add(f"{effect}_{how}", self._execute, effect=effect, timeout_seconds=20, **line)
        await self.bed.serve(self.module)

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        refs, tool, count = (
            [f"{ref}-{number}" for number in range(_BOUND + 1)],
            self.row.tool,
            len(self.module.requests),
        )
        callers, self.most_running = [_OWNER, _OTHER, _OWNER], 0
        handles = []
        for each, caller in zip(refs, callers, strict=True):
            call = ToolCall(tool_name=f"owls.{tool}", arguments={"ref": each, "line": ref}, idempotency_key=each)
            handles.append(await self.fleet.submit(call, caller, timeout=3 * TIMEOUT_SECONDS))
        results, found = [await handle.result() for handle in handles], list[str]()
        if self.row.fate == "pauses" and self.has_died:
            await self._replaced
            await asyncio.sleep(LEASE_SECONDS)
        effect, _, how = tool.partition("_")
        for each, result in zip(refs, results, strict=True):
            found += await self.is_over(result.audit.call_id or "")
            found += self.executed_well(each, result, effect, how)
        order = list(dict.fromkeys(one["arguments"]["ref"] for one in self.module.requests[count:]))
        if [each for each in refs if each in order] != order:
            found.append(f"executed in the order {order}")
        if self.most_running > 1:
            found.append(f"{self.most_running} at once")
        if how == "works" and effect == "read":  # else the module may be at what nobody saw the end of
            found += [f"{key} is left" for kind in ("turn*", "line*") for key in self.look("KEYS", _KEYS.begin + kind)]
        return found

    async def _execute(self, request: Request) -> web.StreamResponse | dict[str, Any]:
        ref = request["arguments"]["ref"]
        self._at_work.append(ref)
        self.most_running = max(self.most_running, len(set(self._at_work)))
        try:
            await asyncio.sleep(_STEP_SECONDS)
            return await super()._execute(request)
        finally:
            self._at_work.remove(ref)


class QueuedScene(Scene):
    """Two calls that wait in a paused queue: one has two messages, as where an answer was lost, and the other is cancelled."""

    has_beat = False

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        deaths = [(site, site.dies_at - site.writes) for site in self._victims() if site.dies_at]
        self.spare()  # until there is something to do
        await self.fleet.queues.pause("owls")
        await asyncio.sleep(_HEARD_SECONDS)
        tool, twice, withdrawn = f"owls.{self.row.tool}", f"{ref}-twice", f"{ref}-withdrawn"
        first = await self.fleet.submit(ToolCall(tool_name=tool, arguments={"ref": twice}), _OWNER)
        await self.becomes(lambda: self.look("LLEN", "tools.owls"), "its message")
        self.look("RPUSH", "tools.owls", self.look("LINDEX", "tools.owls", 0))
        second = await self.fleet.submit(ToolCall(tool_name=tool, arguments={"ref": withdrawn}), _OWNER)
        await second.cancel()
        for site, write in deaths:
            site.dies_at = site.writes + write
        await self.fleet.queues.resume("owls")
        result, none = await first.result(), await second.result()
        found = await self.is_over(first.id) + await self.is_over(second.id)
        found += self.executed_well(twice, result, self.row.tool.partition("_")[0])
        if not self.has_died and (count := self._times_sent(twice)) != 1:
            found.append(f"sent {count} times")
        if self._times_sent(withdrawn) or (none.error_code, none.effect_state) != ("cancelled", "none"):
            found.append(f"cancelled, sent {self._times_sent(withdrawn)} times, and told {none}")
        return found


class LateScene(Scene):
    """A call that takes longer than it may."""

    has_beat = False

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        call = ToolCall(tool_name=f"owls.{self.row.tool}", arguments={"ref": ref})
        began_at = clock.monotonic()
        result = await self.fleet.call(call, _OWNER, timeout=_LATE_TIMEOUT_SECONDS)
        took, call_id = clock.monotonic() - began_at, result.audit.call_id or ""
        self.spare()
        await asyncio.sleep(2 * LEASE_SECONDS)
        found, is_read = await self.is_over(call_id), self.row.tool.startswith("read")
        if took > _LATE_TIMEOUT_SECONDS + 3:
            found.append(f"told after {took:.1f} s")
        sent = self._times_sent(ref)
        if sent > (_MOST_ATTEMPTS if is_read else 1):
            found.append(f"sent {sent} times")
        if result.success or (result.effect_state == "none" and sent):
            found.append(f"sent {sent} times, and told {result}")
        if not self.has_died and (result.error_code, result.effect_state) != ("timed_out", "unknown"):
            found.append(f"told {result}")
        has_letter = bool(self.look("HEXISTS", _KEYS.dead, call_id))
        if has_letter != (result.effect_state == "unknown") and not is_read:
            found.append(f"{'a' if has_letter else 'no'} dead letter of {result.effect_state}")
        return found


class ApprovalScene(Scene):
    """A call that people have to approve: it is asked for, decided about, and executed only if they have said yes."""

    def __init__(self, row: Row, bed: Bed) -> None:
        super().__init__(row, bed)
        seconds = _EXPIRES_SECONDS if row.scene == "expired" else 600
        guard = {"name": "human_in_the_loop", "approve_tools": ["owls.*"], "expires_seconds": seconds}
        self.settings = {"agents": {"guarded": {"middleware": [guard]}}}

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        caller = _OWNER.model_copy(update={"agent": "guarded"})
        call = ToolCall(tool_name="owls.once_works", arguments={"ref": ref}, idempotency_key=ref)
        asked = await self.by("agent", lambda fleet: fleet.call(call, caller, timeout=10))
        call_id = asked.audit.call_id or ""
        if asked.error_code != "approval_required":
            return [f"asked for, and told {asked}"]
        if self.effects[ref]:
            return [f"executed {self.effects[ref]} before anybody has approved it"]
        # It joins the call now: after an end without an effect the key is free for another one.
        seconds = TIMEOUT_SECONDS
        joined = asyncio.create_task(self.fleet.call(call, caller, timeout=seconds, waits_for_approval=seconds))
        await asyncio.sleep(_STEP_SECONDS)
        if self.row.scene == "expired":
            await asyncio.sleep(_EXPIRES_SECONDS)  # and approve it before it is settled
        taken = await self.by("approver", lambda fleet: self._decide(fleet, call_id))
        result = await joined
        found = await self.is_over(call_id)
        if taken > (self.row.scene != "expired"):
            found.append(f"decided about {taken} times")
        if result.audit.call_id != call_id:
            found.append(f"asked for as {call_id}, and ended as {result.audit.call_id}")
        if self.row.scene == "approved":
            return found + self.executed_well(ref, result, "once")
        if (result.error_code, result.effect_state) != ("approval_denied", "none"):
            found.append(f"{self.row.scene}, and ended as {result}")
        if self.effects[ref] or self.look("HEXISTS", _KEYS.dead, call_id):
            found.append(f"{self.row.scene}, and executed {self.effects[ref]}, or a dead letter")
        return found

    async def close(self) -> list[str]:
        """Implements `Scene.close`; all approvals are settled, too."""
        waiting = ApprovalKeys(_KEYS).waiting
        found = await self.becomes(lambda: not self.look("ZCARD", waiting), "the settlement of all approvals")
        return found + await super().close()

    async def _decide(self, fleet: ToolFleet, call_id: str) -> int:
        """Decide, as several people do at once unless one of them is to die of it. Returns how many decisions were taken."""
        decide = fleet.approvals.reject if self.row.scene == "rejected" else fleet.approvals.approve
        people = ("bob",) if self.row.victim == "approver" else ("bob", "eve", "zoe")
        deciding = (decide(call_id, Approver("command line", name, "admin")) for name in people)
        answers = await asyncio.gather(*deciding, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ApprovalNotTaken) and answer.reason in {self.row.scene, "ended"}:
                continue  # somebody else has decided
            if isinstance(answer, BaseException):
                raise answer
        return sum(not isinstance(answer, BaseException) for answer in answers)


class JobScene(Scene):
    """A job that begins after a moment, is polled twice, wakes its conversation and makes a call."""

    async def serve(self) -> None:
        """Implements `Scene.serve`."""
        self._works = make_works(ends_after=2)
        await self.bed.serve(self._works.server)

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        talk = Conversation(conversation_id=ref, platform="chat")
        poll = Poll(tool_name="works.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=1)
        asked = ToolCall(tool_name="works.begin", arguments={"ref": ref}, idempotency_key=ref)
        ends: list[Completion] = ["resume_conversation", ToolCall(tool_name="works.ship", arguments={"path": ref})]

        async def start(fleet: ToolFleet) -> Job:
            schedule = Schedule(delay_seconds=0.3)
            return await fleet.jobs.start(
                asked, poll, ends, talk, caller=_OWNER, schedule=schedule, deadline=TIMEOUT_SECONDS
            )

        job = await self.by("agent", start)
        is_due = partial(self.look, "ZSCORE", _KEYS.jobs_due, job.job_id)
        found = await self.becomes(lambda: is_due() is None, "the end of the job")
        if (over := await self.fleet.jobs.get(job.job_id, _OWNER)) is None or found:
            return [*found, f"it is {over}"]
        stream, ship_id = _KEYS.completions_of(ref, _OWNER.user_id), then_call_id(job.job_id, 0)
        found += await self.becomes(lambda: self.look("EXISTS", stream), "what wakes the conversation")
        if over.state == "completed":
            ended = lambda: self.look("HGET", _KEYS.call(ship_id), "state") == "done"  # noqa: E731
            found += await self.becomes(ended, "the call at the job's end")
            found += await self.is_over(ship_id)
        return found + await self._judge(ref, over, ship_id)

    async def _judge(self, ref: str, job: Job, ship_id: str) -> list[str]:
        server, found = self._works.server, list[str]()
        begun = [call for call in server.calls("begin") if call["arguments"]["ref"] == ref]
        shipped = Counter(server.call_ids("ship"))[ship_id]
        stream = _KEYS.completions_of(ref, _OWNER.user_id)
        told = [dict(zip(one[1][::2], one[1][1::2], strict=True))["id"] for one in _entries(self.look, stream)]
        if told != [job.job_id]:
            found.append(f"the conversation is woken by {told}")
        if job.state == "completed":
            if len(begun) != 1:
                found.append(f"begun {len(begun)} times")
            if shipped != 1 and not (self.has_died and self.look("HEXISTS", _KEYS.dead, ship_id)):
                found.append(f"the call at its end was made {shipped} times")
        elif not self.has_died or job.error_code != "outcome_unknown" or len(begun) > 1 or shipped:
            found.append(
                f"ended as {job.state} {job.error_code} {job.error}, begun {len(begun)} times, shipped {shipped}"
            )
        if shipped > 1:
            found.append(f"shipped {shipped} times")
        async with contextlib.aclosing(self.fleet.wakeups.completions(ref)) as news:
            wake = await asyncio.wait_for(anext(news), TIMEOUT_SECONDS)
        if (wake.job_id, wake.type) != (job.job_id, f"job.{job.state}"):
            found.append(f"it {job.state}, and the conversation hears {wake.type}")
        waiting = (_KEYS.jobs_due, _KEYS.wakes_due, _KEYS.calls_due, _KEYS.jobs_of(_OWNER.user_id))
        found += await self.becomes(
            lambda: not any(self.look("ZCARD", key) for key in waiting), "the end of all that waits"
        )
        ended = [each.job_id for each in await self.fleet.jobs.list(_OWNER)]
        return found if ended.count(job.job_id) == 1 else [*found, f"listed {ended.count(job.job_id)} times"]


class ProgramScene(Scene):
    """A program of four calls, two of them at once and one that people have to approve; its caller waits for it.

    Where beat dies, the program's worker has died before: without beat's tick the program does not go on.
    """

    settings: Mapping[str, Any] = {"programs": True, "signing_key": SIGNING_KEY}

    async def serve(self) -> None:
        """Implements `Scene.serve`, with a tool that asks for an approval."""
        self.module.add("once_asked", self._execute, effect="once", approval=True)
        await super().serve()

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        refs = [f"{ref}-{number}" for number in range(1, 5)]
        source = _PROGRAM.format(*refs)
        call = ToolCall(tool_name="programs.run", arguments={"source": source}, idempotency_key=ref)
        approving = asyncio.create_task(self._approve())
        if self.row.victim == "beat":
            orphaning = asyncio.create_task(self._orphan())
        talk = Conversation(conversation_id=ref, platform="chat")
        result = await self.by(
            "agent", lambda fleet: fleet.call(call, _OWNER, conversation=talk, timeout=TIMEOUT_SECONDS)
        )
        if self.row.fate == "pauses" and self.has_died:
            await self._replaced
            await asyncio.sleep(LEASE_SECONDS)
        call_id = result.audit.call_id or ""
        program_id = program_id_of(call_id)
        is_due = partial(self.look, "ZSCORE", _KEYS.programs_due, program_id)
        found = await self.becomes(lambda: is_due() is None, "the end of the program")
        approving.cancel()
        if self.row.victim == "beat":
            await orphaning
        found += await self.is_over(call_id)
        program = await self.fleet.programs.get(program_id, _OWNER)
        done = [self.effects[each] for each in refs]
        if max(map(len, done)) > 1:
            found.append(f"executed {done}")
        if program is not None:
            return found + await self._judge(ref, result, program, done)
        is_lost = (result.error_code, result.effect_state) == ("outcome_unknown", "unknown")
        if not is_lost or not self._may_be_unknown or any(done):
            found.append(f"no program, told {result}, executed {done}")
        return found

    async def _judge(self, ref: str, result: ToolResult, program: ToolProgram, done: list[list[str]]) -> list[str]:
        found, stream = list[str](), _KEYS.completions_of(ref, _OWNER.user_id)
        for each in program.calls:
            if each.state not in {"left", "withdrawn"}:
                found += await self.is_over(each.call_id)
        waits = result.success and isinstance(result.result, dict) and result.result.get("state") == "waiting"
        if waits:
            found += await self.becomes(lambda: self.look("EXISTS", stream), "what wakes the conversation")
        told = _entries(self.look, stream)
        if len(told) != waits:
            found.append(f"told {result}, and woken by {told}")
        if program.state == "completed":
            value = program.result if waits else result.result
            if value != [each[0] for each in done if each] or len(value) != len(done):
                found.append(f"completed with {value}, executed {done}")
        elif not self._may_be_unknown or program.error_code != "outcome_unknown":
            found.append(f"ended as {program.state} {program.error_code}: {program.error}")
        return found

    @property
    def _may_be_unknown(self) -> bool:
        """Whether a worker has died, or paused, that may have had a call."""
        return self.has_died and self.row.victim == "worker"

    async def _orphan(self) -> None:
        """Have the worker die that stores the first step, before its calls leave it, and start another one."""
        stored, move = asyncio.Event(), ProgramRecords.move

        async def dying(*of: Any, **how: Any) -> Any:
            moved = await move(*of, **how)
            if how.get("state") is not None and not stored.is_set():
                stored.set()
                await asyncio.Event().wait()  # until it is killed
            return moved

        with mock.patch.object(ProgramRecords, "move", dying):
            await stored.wait()
        (dead,), self._workers = self._workers, []  # which has no other one started for it
        dead.kill()
        self._workers = [await self.bed.worker()]

    async def close(self) -> list[str]:
        """Implements `Scene.close`; all approvals are settled, too."""
        waiting = ApprovalKeys(_KEYS).waiting
        await asyncio.sleep(2 * _QUIET_SECONDS)  # they end with the deadlines of their calls
        found = await self.becomes(lambda: not self.look("ZCARD", waiting), "the settlement of all approvals")
        return found + await super().close()

    async def _approve(self) -> None:
        """Approve what waits, as soon as it is asked for."""
        while True:
            for each in await self.fleet.approvals.list():
                if each.state == "waiting":
                    with contextlib.suppress(ApprovalNotTaken):
                        await self.fleet.approvals.approve(each.approval_id, Approver("command line", "boss", "admin"))
            await asyncio.sleep(_STEP_SECONDS)


class CoreScene(Scene):
    """A reminder that wakes a conversation over HTTP."""

    def __init__(self, row: Row, bed: Bed) -> None:
        super().__init__(row, bed)
        self.acts: list[tuple[str, str]] = []
        self._port = 0

    async def serve(self) -> None:
        """Implements `Scene.serve`."""
        await self._serve_core()
        self.settings = {}
        self.bed.given |= {
            "core_url": f"http://{LOOPBACK}:{self._port}",
            "core_secret": _SECRET,
        }
        await super().serve()

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        talk = Conversation(conversation_id=ref, platform="chat")
        soon = Schedule(delay_seconds=0.3)
        job = await self.fleet.jobs.start(conversation=talk, caller=_OWNER, schedule=soon, message=ref)
        waits = (_KEYS.jobs_due, _KEYS.wakes_due)
        found = await self.becomes(lambda: not any(self.look("ZCARD", key) for key in waits), "the end of all news")
        told = [path for wake_id, path in self.acts if wake_id == job.job_id]
        if set(told) != {"/continue"} or (len(told) > 1 and not self.has_died) or len(told) > 2:
            found.append(f"the core was woken by {told}")
        if others := {wake_id for wake_id, _ in self.acts[-len(told) :]} - {job.job_id}:
            found.append(f"news of nobody: {others}")
        if self.look("EXISTS", _KEYS.wake(job.job_id)) or self.look("HLEN", _KEYS.dead_wakes):
            found.append("its news are there, or dead")
        return found

    async def replace(self) -> None:
        """Implements `Scene.replace`."""
        if self.row.victim == "core":
            await self._serve_core()
        await super().replace()

    def _victims(self) -> list[Site]:
        return [self._core] if self.row.victim == "core" else super()._victims()

    async def _serve_core(self) -> None:
        self._core = self.bed.site("core")

        async def act(request: web.Request) -> web.Response:
            await request.read()
            self.acts.append((request.headers["webhook-id"], request.path))
            await asyncio.sleep(_ACTS_SECONDS)
            return web.Response(status=202)

        async def serve() -> int:
            app = web.Application()
            app.router.add_post("/{path:.*}", act)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, LOOPBACK, self._port, reuse_address=True).start()
            port: int = runner.addresses[0][1]
            return port

        self._port = await self._core.start(serve())


class StreamScene(Scene):
    """Reminders that wake a conversation whose agent reads a stream. An agent that dies has another one in its place."""

    async def ask(self, ref: str) -> list[str]:
        """Implements `Scene.ask`."""
        talk, heard = Conversation(conversation_id=ref, platform="chat"), list[str]()
        soon = Schedule(delay_seconds=0.3)
        jobs = [
            await self.fleet.jobs.start(conversation=talk, caller=_OWNER, schedule=soon, message=ref)
            for _ in range(_NEWS)
        ]
        stream, ids = _KEYS.completions_of(ref, _OWNER.user_id), {job.job_id for job in jobs}

        async def read(fleet: ToolFleet) -> None:
            async with contextlib.aclosing(fleet.wakeups.completions(ref)) as news:
                reading = asyncio.create_task(_listen(news, heard))
                while set(heard) != ids or self.look("XLEN", stream):  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(_STEP_SECONDS)
                reading.cancel()
                await asyncio.wait([reading])

        await self.by("agent", read)
        most = 2 if self.has_died else 1
        is_well = set(heard) == ids and max(Counter(heard).values()) <= most
        return [] if is_well else [f"of {ids} it heard {heard}"]


async def _listen(news: Any, heard: list[str]) -> None:
    async for wake in news:
        heard.append(wake.wake_id)  # noqa: PERF401 - at once


def _entries(look: Callable[..., Any], stream: str) -> list[Any]:
    found = look("XRANGE", stream, "-", "+")
    return [(entry_id, [word for pair in fields.items() for word in pair]) for entry_id, fields in found]


SCENES: Mapping[str, type[Scene]] = {
    "call": CallScene,
    "crowd": CrowdScene,
    "line": LineScene,
    "queued": QueuedScene,
    "late": LateScene,
    "approved": ApprovalScene,
    "rejected": ApprovalScene,
    "expired": ApprovalScene,
    "job": JobScene,
    "program": ProgramScene,
    "core": CoreScene,
    "stream": StreamScene,
}
