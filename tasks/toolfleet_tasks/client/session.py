"""Opens the sessions of a fleet: an agent has one for each event loop and forked process, a worker one for its loop."""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from redis.asyncio import Redis

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.live_profiles import LiveProfiles
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    ModuleStatus,
    PublishedCall,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.live_copy import LiveCopy
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.policy.limits import Remaining
from toolfleet_registry.redis.servers import async_client, connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import aio, worker_runtime
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.aio import ForkedSockets, end, is_wanted, leave_behind
from toolfleet_tasks.calls.audit_trail import AuditTrail, refused_without_redis
from toolfleet_tasks.calls.begun_calls import BegunCalls, Owner
from toolfleet_tasks.calls.dispatcher import Dispatcher, WorkerWait
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances, EvalGate, Evaluation
from toolfleet_tasks.calls.idempotency import Joined, KeyedCalls
from toolfleet_tasks.calls.pending_call import InputAnswers, PendingCall
from toolfleet_tasks.calls.prepare import CallPreparation, check_timeout, specs_of
from toolfleet_tasks.client.agent_publisher import agent_publisher
from toolfleet_tasks.client.allowance import explained, read_remaining, refusal_now
from toolfleet_tasks.clock import Timekeeper
from toolfleet_tasks.control.server_check import refuse_cluster, say_faults
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.limits import Within, limits_among
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results.listener import ResultListener, ResultWaiters
from toolfleet_tasks.results.receipts import Receipts
from toolfleet_tasks.results.verifier import ResultReader
from toolfleet_tasks.tracing import agents_tracing
from toolfleet_tasks.transport.publisher import Publisher
from toolfleet_tasks.worker_runtime import WorkerRuntime

if TYPE_CHECKING:
    from toolfleet_registry.agents.explanation import ToolExplanation
    from toolfleet_registry.catalog.registry_events import HeldRegistry
    from toolfleet_tasks.approvals.feed import ApprovalFeed
    from toolfleet_tasks.approvals.service import ApprovalService
    from toolfleet_tasks.approvals.waiting import CallsToApprove
    from toolfleet_tasks.artifacts import Artifacts, OpenedArtifact
    from toolfleet_tasks.calls.artifact_arguments import ArtifactBinding
    from toolfleet_tasks.dead_letters.letters import DeadEntries
    from toolfleet_tasks.jobs.engine import JobSteps
    from toolfleet_tasks.jobs.service import JobService
    from toolfleet_tasks.programs import ProgramService
    from toolfleet_tasks.wakeups.service import WakeupService

log = get_logger(__name__)

_AGAIN_SECONDS = 1.0  # until a failed load is repeated: a change is announced only once

T = TypeVar("T")

_LAST_WORDS_SECONDS = 3.0  # for ledger and workers to hear, when the fleet is left, that a call was given up
_REDIS_SECONDS = 5.0  # for one answer of Redis
_CLOSE_SECONDS = 10.0  # for another loop to close its session


def agents_catalog(redis: Redis, cache: ManifestCache, known: KnownModules, settings: Settings) -> Catalog:
    """Return an agent's catalog, which reads from Redis. `known` takes over which modules there are.

    Raises `SettingsError` if a profile of the settings cannot be applied here: it names a class that is missing, say.
    """
    own = OwnClasses(settings, runs_in="agent")
    own.check(settings)
    profiles = KnownProfiles(settings, own=own)
    profiles.guards.check(settings)
    return Catalog(
        settings,
        cache,
        known=known,
        directory=ModuleDirectory(redis, settings),
        profiles=LiveProfiles(redis, settings, profiles),
        asks_fleet=True,
    )


class CatalogUpdates:
    """Reloads `catalog` after each announcement. `redis` is the client that it reads with."""

    def __init__(self, catalog: Catalog, redis: Redis) -> None:
        self._catalog = catalog
        self._redis = redis
        self._is_announced = asyncio.Event()
        self._copy = LiveCopy(self._load, event="manifests_not_reloaded")

    def announced(self) -> None:
        """Note that manifests have changed, or may have during a gap in listening."""
        self._is_announced.set()

    async def follow(self) -> None:
        """Load what was announced, until cancelled."""
        while is_wanted():
            await self._is_announced.wait()
            self._is_announced.clear()
            if not await self._copy.refresh():
                await asyncio.sleep(_AGAIN_SECONDS)
                self._is_announced.set()

    def close_idle(self) -> None:
        """Close the client's idle connections: it is used too seldom to keep any.

        Without a wait that could be cancelled: after `asyncio.run` nothing may be left of them.
        """
        pool = self._redis.connection_pool
        for connection in pool._available_connections:  # noqa: SLF001 - redis-py closes them in tasks of their own
            connection._close()  # noqa: SLF001

    async def _load(self) -> None:
        try:
            await self._catalog.reload()
        finally:
            self.close_idle()


class Session:
    """A fleet on the running loop, from `open` to `aclose`. Belongs to that loop and to this process.

    Redis cuts a connection that subscribes once it has 32 MB to read, by its default. A session that many users share,
    of a gateway (`is_shared`) or a worker (without `has_agent`), therefore subscribes over one connection, and sends
    commands over a second one. Only calls are published over the first, with their records: Redis must know the
    listener before it has the call, and its answers have a few bytes.

    What most agents never use is imported, and made, when it is asked for: jobs, approvals, dead letters and others.
    """

    def __init__(
        self, settings: Settings, gate: EvalGate | None = None, *, has_agent: bool = True, is_shared: bool = False
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings, self._keys, self._has_agent = settings, settings.keys, has_agent
        self._sockets, self._background = ForkedSockets(), set[asyncio.Task[Any]]()
        self._last_words = set[asyncio.Task[None]]()
        url = str(settings.redis_url)
        self._redis = async_client(url, master=settings.sentinel_master, timeout_seconds=_REDIS_SECONDS)
        self._cache = ManifestCache(self._redis, ttl_seconds=settings.manifest_ttl_seconds, keys=self._keys)
        known = KnownModules(settings, probes_everywhere=has_agent)
        self._catalog = agents_catalog(self._redis, self._cache, known, settings)
        self._updates = CatalogUpdates(self._catalog, self._redis)
        self._connection = self._connect_to(url, "agent")
        has_many_users = is_shared or not has_agent
        self._commands = self._connect_to(url, "commands") if has_many_users else self._connection
        self._connections = [self._connection, *([self._commands] if has_many_users else [])]
        self._ledger = Ledger(self._commands, settings, writes_results=False)
        self.trail, self._timekeeper = AuditTrail(self._commands, settings), Timekeeper(settings)
        self._gate = Evaluation(gate, settings)
        handlers = {self._keys.manifests_changed: self._updates.announced}
        reads, verifier = self._connect_to(url, "reads"), self._ledger.verifier
        self._listener = ResultListener(self._connection, reads, verifier, handlers=handlers, keys=self._keys)
        self.preparation = self._make_preparation(known)
        ends = ResultReader(self._connect_to(url, "ends"), lambda *_: None)
        self.ends = ResultWaiters(self._listener, ends, keys=self._keys)
        self._receipts, self._admission = Receipts(self._commands, settings), AdmissionControl(settings)
        self._publisher = self._make_publisher()
        self.answers = InputAnswers(self._ledger, self._publisher, settings, self.preparation.hidden_input)
        self._follow = self._make_follow()
        self.begun = self._make_begun(ResultReader(self._connect_to(url, "begun"), lambda *_: None))
        self._keyed_calls = self._make_joins(ResultReader(self._connect_to(url, "joins"), lambda *_: None))
        self.tracing = agents_tracing(settings)
        self._dispatcher = self._make_dispatcher(known)

    @cached_property
    def held(self) -> "HeldRegistry":
        """The registry, for operators' changes."""
        from toolfleet_registry.catalog.registry_events import HeldRegistry  # see the class

        return HeldRegistry(self._cache, self.settings)

    @cached_property
    def dead(self) -> "DeadEntries":
        """The dead letters."""
        from toolfleet_tasks.dead_letters.letters import DeadEntries

        return DeadEntries(self._redis, self.settings)

    @cached_property
    def wakes(self) -> "WakeupService":
        """The wake-ups of jobs that have ended."""
        from toolfleet_tasks.wakeups.service import WakeupService

        return WakeupService(self._commands, self._connect_to, self.settings)

    @cached_property
    def approvals(self) -> "ApprovalService":
        """The approvals of calls."""
        from toolfleet_tasks.approvals.service import approval_service

        parts = self._commands, self._ledger, self._dispatcher, self.preparation, self._admission
        return approval_service(*parts, self.settings, kick=self._kick_program)

    async def server(self, *, asks: bool = False) -> str:
        """Return the name of the server and data that calls are published into, as is known or, `asks`, as it says now.

        Raises `RedisConnectionLost`.
        """
        identity = self._listener.identity
        await (identity.recognise() if asks else identity.known())
        return identity.name

    async def _kick_program(self, program_id: str) -> None:
        await self.programs.kick(program_id)

    @cached_property
    def artifacts(self) -> "Artifacts":
        """The large results that are kept, of a fleet that has a store."""
        from toolfleet_tasks.artifacts import Artifacts

        return Artifacts(self.settings)

    async def open_artifact(self, artifact_id: str, owner: str | None, caller: Caller) -> "OpenedArtifact | None":
        """Return an owner's artifact for a caller who may use the tool that has produced it, as its profile has it; `None` for any other.

        Raises `FleetUnavailable`, `ArtifactMissing`, `ArtifactStoreAway` and `PersonalDataBlocked`.
        """
        from toolfleet_registry.contracts.artifacts import screened
        from toolfleet_tasks.artifacts import OpenedArtifact

        record = await self.artifacts.find(artifact_id, owner)
        reached = None if record is None else self._catalog.reached(record.tool_name, caller)
        if record is None or reached is None:
            return None
        if not (specs := specs_of(*reached)):
            return OpenedArtifact(record, self.artifacts)

        async def hide(value: Any) -> Any:
            return (await self._catalog.profiles.guards.hide(specs, "result", value, size=record.size)).value

        whole = await screened(record, await self.artifacts.read(record), hide)
        return OpenedArtifact(record, self.artifacts, whole)

    @cached_property
    def approval_feed(self) -> "ApprovalFeed":
        """The events of approvals."""
        from toolfleet_tasks.approvals.feed import ApprovalFeed

        return ApprovalFeed(self._commands, self.approvals.records, self._listener.watches.watching)

    @cached_property
    def steps(self) -> "JobSteps":
        """The steps of jobs."""
        from toolfleet_tasks.jobs.engine import JobSteps

        ask_people, judges = self.approvals.ask_for_step, (self.preparation, self._dispatcher)
        return JobSteps(*judges, ask_people, self.trail, self.settings, self.tracing, ledger=self._ledger)

    @cached_property
    def jobs(self) -> "JobService":
        """The jobs. A worker has no gate to ask for them."""
        from toolfleet_tasks.jobs.records import JobRecords
        from toolfleet_tasks.jobs.service import JobService

        records, control = JobRecords(self._commands, self.settings, self._ledger.verifier), self._publisher.control
        gate = self._gate if self._has_agent else None
        return JobService(records, self.preparation, self.settings, gate=gate, control=control, spawn=self._spawn)

    @cached_property
    def programs(self) -> "ProgramService":
        """The programs."""
        from toolfleet_tasks.programs import ProgramRecords, ProgramService

        records = ProgramRecords(self._commands, self.settings, self._ledger.verifier)
        control, watching = self._publisher.control, self._listener.watches.watching
        return ProgramService(records, self.settings, control=control, watching=watching, spawn=self._spawn)

    @cached_property
    def _waiting(self) -> "CallsToApprove":
        from toolfleet_tasks.approvals.waiting import CallsToApprove

        followed = self._follow, self._listener.listening
        return CallsToApprove(self.approvals, self._keyed_calls, *followed, self.begun.write)

    async def open(self) -> None:
        """Connect, and load what exists.

        Raises `FleetUnavailable`, or `SettingsError` for a Redis that cannot be used.
        """
        try:
            await self._cache.check()
            await refuse_cluster(self._redis)
            await self._timekeeper.begin(self._redis)
            if self._has_agent:  # a worker has looked itself
                await say_faults(self.settings, self._redis)
            await self._catalog.ensure()
            self._updates.close_idle()
        except BaseException:
            await self.aclose()
            raise
        for connection in self._connections:
            connection.start()
        self._listener.start()
        self._spawn(self._updates.follow())

    async def aclose(self) -> None:
        """Close everything. Calls under way end with a result that says so."""
        self._dispatcher.close()
        if self._last_words:
            await asyncio.wait(self._last_words, timeout=_LAST_WORDS_SECONDS)
        await end(self._background)
        await self._listener.aclose()
        await self._listener.verifier.aclose()
        await self._keyed_calls.aclose()
        await self.begun.aclose()
        await self.ends.aclose()
        await self.trail.settle()
        if "wakes" in self.__dict__:
            await self.wakes.aclose()
        await self._receipts.aclose()
        for connection in self._connections:
            await connection.aclose()
        self._publisher.close()
        if "held" in self.__dict__:
            await self.held.aclose()
        if "artifacts" in self.__dict__:
            await self.artifacts.aclose()
        await self._redis.aclose()

    def abandon(self) -> None:
        """End the session without its loop, which has ended or is stuck.

        Unfinished work is left behind, for good.
        """
        had_sockets = self._sockets.cut()
        # After `asyncio.run` nothing is left of it: a program that makes a loop for each call must not collect sessions.
        if had_sockets or asyncio.all_tasks(self.loop):
            leave_behind(self)
        else:
            self._publisher.close()

    def forked(self) -> None:
        """Leave the connections alone: this is a copy, and the loop is another process's."""
        self._sockets.cut()
        leave_behind(self)

    def tools(self, caller: Caller) -> list[ToolDefinition]:
        """Implements `ToolFleet.tools`."""
        return self._catalog.tools(caller)

    def tool(self, name: str, caller: Caller) -> ToolDefinition | None:
        """Implements `FleetBegunCalls.tool`."""
        usable = self._catalog.usable(ToolCall(tool_name=name), caller)
        return None if isinstance(usable, ToolResult) else usable

    def reaches(self, name: str, caller: Caller) -> bool:
        """Implements `FleetBegunCalls.reaches`."""
        return self._catalog.reaches(name, caller)

    def absence(self, name: str, caller: Caller) -> ToolResult:
        """Implements `FleetBegunCalls.absence`."""
        return self._catalog.absence(name, caller)

    async def search(self, text: str, caller: Caller, *, tags: Sequence[str], limit: int) -> list[ToolDefinition]:
        """Implements `ToolFleet.search`."""
        return await self._catalog.search(text, caller, tags=tags, limit=limit)

    async def statuses(self) -> dict[str, ModuleStatus]:
        """Implements `ToolFleet.statuses`."""
        known = self._catalog.statuses()
        if not any(status.is_stale for status in known.values()):
            return known
        # A probe without news is not announced: ages are those of what we read last.
        try:
            await self._catalog.load()
        except FleetUnavailable as exc:
            log.warning("manifests_not_reloaded", error=str(exc))
        finally:
            self._updates.close_idle()
        return self._catalog.statuses()

    async def explain(self, tool_name: str, caller: Caller, conversation: Conversation | None) -> "ToolExplanation":
        """Implements `FleetModules.explain`."""
        within = Within.of_conversation(conversation or Conversation())
        return await explained(self._catalog, self._commands, self.settings, tool_name, caller, within)

    async def refresh(self) -> dict[str, ModuleStatus]:
        """Implements `ToolFleet.refresh`."""
        try:
            return await self._catalog.refresh()
        finally:
            self._updates.close_idle()

    async def remaining(self, caller: Caller, conversation: Conversation | None = None) -> Remaining:
        """Implements `ToolFleet.remaining`."""
        tools, within = self._catalog.callable_by(caller), Within.of_conversation(conversation or Conversation())
        beside = self.preparation.terms_beside(caller) if tools else None
        limits = limits_among(tools, caller.user_id, self.settings, beside=beside, within=within)
        return await read_remaining(self._commands, limits)

    async def begin(
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None,
        seconds: float | None,
        *,
        waits: bool,
        waits_for_worker: bool = False,
        replay_of: str | None = None,
        around: Circumstances = NOTHING_MORE,
        owner: Owner | None = None,
        until_end: bool = False,
    ) -> PendingCall | Joined | ToolResult:
        """Judge and publish a call, which is to end in `seconds`.

        A call that is neither published nor joined has its result already.

        `waits`: over its caller's limit it is published later, if there is time, and else it is `busy`. `waits_for_worker`: it
        is published also where no worker consumes its queue. `owner`: any process may go on with it, in their name.
        `until_end`: the caller only waits for the call's end, so this may return its result when that has come.
        """
        if self._timekeeper.due_at <= self._timekeeper.clock.monotonic():
            self._timekeeper.read_over(self._commands)
        asked = call, caller, conversation, seconds
        prepared = await self.preparation.prepare(*asked, replay_of=replay_of, around=around)
        if isinstance(prepared, ToolResult):
            return prepared
        if prepared.approval is not None:
            post = self._waiting.begin(prepared, None if conversation is None else conversation.conversation_id)
        else:
            post = self._dispatcher.post(prepared, waits=waits, waits_for_worker=waits_for_worker, until_end=until_end)
        started = await (post if owner is None else self.begun.owned(post, prepared, owner))
        if isinstance(started, ToolResult):
            return self.trail.unpublished(prepared, started)
        return started.ending.result() if until_end and started.ending.done() else started

    def prepare(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, seconds: float
    ) -> Awaitable[PublishedCall | ToolResult]:
        """Judge a call that another component publishes; see `CallPreparation.prepare`."""
        self._timekeeper.read_over(self._commands)
        return self.preparation.prepare(call, caller, conversation, seconds)

    def _connect_to(self, url: str, name: str) -> PipelinedConnection:
        connect = connection_factory(url, master=self.settings.sentinel_master)
        return PipelinedConnection(self._sockets.watched(connect), name=name)

    def _connect_to_broker(self) -> PipelinedConnection:
        self._connections.append(connection := self._connect_to(str(self.settings.broker), "agent-broker"))
        return connection

    def _make_preparation(self, known: KnownModules) -> CallPreparation:
        limited = functools.partial(refusal_now, self._commands)
        return CallPreparation(
            self._catalog,
            known,
            self.settings,
            gate=self._gate,
            limited=limited,
            trail=self.trail,
            new_call_id=self._listener.new_call_id,
            artifacts=self._make_binding(),
        )

    def _make_binding(self) -> "ArtifactBinding | None":
        if self.settings.artifact_store is None:
            return None
        from toolfleet_tasks.calls.artifact_arguments import ArtifactBinding

        return ArtifactBinding(lambda: self.artifacts, self._catalog)

    def _make_publisher(self) -> Publisher:
        parts, broker = (self._admission, self.settings, self._connection), self._connect_to_broker
        listening = self._listener.listening
        return agent_publisher(
            *parts, broker_connection=broker, listening=listening, spawn=self._spawn, pending=self._pending
        )

    def _pending(self) -> Iterator[PublishedCall]:
        """Yield the calls that this agent has published and that have not ended."""
        waiters = (each for each in self._listener.waiters() if isinstance(each, PendingCall))
        return (call for each in waiters if (call := each.sent_call) is not None)

    def _make_dispatcher(self, known: KnownModules) -> Dispatcher:
        workers, tracing = WorkerWait(self._commands, self.settings, known, spawn=self._spawn), self.tracing
        parts = self._publisher, self._admission, self._keyed_calls, self.begun, workers, self.settings
        follow = functools.partial(self._follow, had=self._receipts.had)
        return Dispatcher(*parts, follow=follow, spawn=self._spawn, tracing=tracing)

    def _make_begun(self, reader: ResultReader) -> BegunCalls:
        parts = self._connection, self._listener, self.settings
        return BegunCalls(*parts, reader=reader, receipts=self._receipts, follow=self._follow)

    def _make_joins(self, reader: ResultReader) -> KeyedCalls:
        """Make the joins of calls. Their reads are sent one by one, over a connection of their own."""
        follow, read = functools.partial(self._follow, is_guest=True), self._receipts.read
        return KeyedCalls(self._listener, reader, keys=self._keys, follow=follow, spawn=self._spawn, read=read)

    def _make_follow(self) -> Callable[..., PendingCall]:
        """Return the function that follows a call.

        Its methods are bound once, or each call in flight would hold some of its own.
        """
        follow = functools.partial(PendingCall, listener=self._listener, ledger=self._ledger, spawn=self._say_last)
        if self.settings.artifact_store is None:
            follow = functools.partial(follow, shows_artifacts=False)
        return functools.partial(follow, revoke=self._publisher.revoke, had=self._had, answers=self.answers)

    def _had(self, call: PublishedCall, result: ToolResult, text: str) -> None:
        (self.begun.had if self.begun.is_own(call.call_id) else self._receipts.had)(call, result, text)

    def _say_last(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """End a call after its caller may have gone. `aclose` waits a little for that."""
        self._last_words.add(task := self._spawn(work))
        task.add_done_callback(self._last_words.discard)
        return task

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in the background, and end it with the fleet."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


class Sessions:
    """The sessions of one fleet: opened with a loop's first use, and closed together when the fleet is left."""

    def __init__(self, settings: Settings, gate: EvalGate | None = None, *, is_shared: bool = False) -> None:
        self.settings, self._is_shared = settings, is_shared
        self._gate = gate
        self._lock = threading.Lock()  # for the moments in which the fields below change; never held across a wait
        self._open: dict[asyncio.AbstractEventLoop, Session] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Session]] = {}
        self._entered = 0
        self._is_usable = False
        aio.call_after_fork(self.forked)

    async def enter(self) -> None:
        """Open the session of the running loop. Raises what `Session.open` does."""
        with self._lock:
            was_usable, self._is_usable = self._is_usable, True
            self._entered += 1
        try:
            await self.opened()
        except BaseException:
            with self._lock:
                self._entered -= 1
                self._is_usable = was_usable
            raise

    async def leave(self) -> None:
        """Close all sessions, if no other code has entered. Bounded in time, even if other loops hang."""
        with self._lock:
            if not self._is_usable:  # it was left already
                return
            self._entered -= 1
            if self._entered > 0:
                return
            self._entered, self._is_usable = 0, False
            sessions, self._open = self._open, {}
        here = sessions.pop(asyncio.get_running_loop(), None)
        await asyncio.gather(*(_close_elsewhere(session) for session in sessions.values()))
        if here is not None:
            await here.aclose()

    def here(self) -> Session | None:
        """Return the session of the running loop, if it is open. Raises `RuntimeError` if the fleet was not entered."""
        if not self._is_usable:
            raise RuntimeError(
                "This fleet is not open: use it inside `async with ToolFleet() as fleet:`, or between `open()` and `close()`."
            )
        return self._open.get(asyncio.get_running_loop())

    async def opened(self) -> Session:
        """Return the session of the running loop, opened if it is not. Raises what `Session.open` does."""
        if (session := self.here()) is not None:
            return session
        loop = asyncio.get_running_loop()
        with self._lock:
            self._drop_dead()
            opening = self._opening.get(loop)
            if opening is None:
                opening = self._opening[loop] = loop.create_task(self._open_on(loop), name="toolfleet-open")
                opening.add_done_callback(_seen)
        return await asyncio.shield(opening)  # others may wait for it, too

    def begin(
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None,
        seconds: float | None,
        *,
        waits: bool,
        waits_for_worker: bool = False,
        around: Circumstances = NOTHING_MORE,
        until_end: bool = False,
    ) -> Coroutine[Any, Any, PendingCall | Joined | ToolResult]:
        """Begin a call as `Session.begin` does.

        The running loop's session is opened with the first call, within the call's time.
        """
        if seconds is not None:
            check_timeout(seconds)
        session = self.here()
        begin = self._open_and_begin if session is None else session.begin
        return begin(
            call,
            caller,
            conversation,
            seconds,
            waits=waits,
            waits_for_worker=waits_for_worker,
            around=around,
            until_end=until_end,
        )

    async def _open_and_begin(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, seconds: float | None, **how: Any
    ) -> PendingCall | Joined | ToolResult:
        clock = asyncio.get_running_loop().time
        began_at = clock()
        try:
            async with asyncio.timeout(seconds):
                session = await self.opened()
        except (FleetUnavailable, TimeoutError) as exc:
            reason = str(exc) or "Redis does not answer"
            result = fleet_results.fleet_unavailable(call.tool_name, reason)
            return refused_without_redis(self.settings, call, caller, result)
        seconds = None if seconds is None else seconds - (clock() - began_at)
        return await session.begin(call, caller, conversation, seconds, **how)

    def forked(self) -> None:
        """Drop the copies, which are the parent's: this process opens its own."""
        for session in self._open.values():
            session.forked()
        aio.leave_behind(self._opening)
        self._lock, self._open, self._opening, self._entered = threading.Lock(), {}, {}, 0

    async def _open_on(self, loop: asyncio.AbstractEventLoop) -> Session:
        try:
            session = Session(self.settings, self._gate, is_shared=self._is_shared)
            await session.open()
            with self._lock:
                if is_usable := self._is_usable:
                    self._open[loop] = session
            if not is_usable:
                await session.aclose()
                raise RuntimeError("This fleet was left while it was being opened.")
            return session
        finally:
            with self._lock:
                self._opening.pop(loop, None)

    def _drop_dead(self) -> None:
        """Drop the sessions of loops that were closed."""
        for loop in [loop for loop in self._open if loop.is_closed()]:
            self._open.pop(loop).abandon()
        for loop in [loop for loop in self._opening if loop.is_closed()]:
            if not (opening := self._opening.pop(loop)).done():
                aio.leave_behind(opening)


async def _close_elsewhere(session: Session) -> None:
    if session.loop.is_running():
        closing = session.aclose()
        try:
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, session.loop))
        except RuntimeError:  # it was closed just now
            closing.close()
        else:
            await asyncio.wait([future], timeout=_CLOSE_SECONDS)
            if future.done() and not future.cancelled() and future.exception() is None:
                return
            future.cancel()  # the loop has ended meanwhile, or is stuck
    session.abandon()


def _seen(opening: "asyncio.Task[Session]") -> None:
    if not opening.cancelled():
        opening.exception()


@asynccontextmanager
async def worker_session(settings: Settings) -> AsyncGenerator[Session]:
    """Open the session of this worker's loop, or one for this use outside of a worker. It has no agent.

    No gate can be asked, so tools that require one are refused. Raises `FleetUnavailable`.
    """
    here = worker_runtime.current()
    if here is not None:
        yield await here.part(_SharedSession, settings).opened()
        return
    session = Session(settings, has_agent=False)
    await session.open()
    try:
        yield session
    finally:
        await session.aclose()


class _SharedSession:
    """Opens the session of a worker's loop once, and again after a failure."""

    def __init__(self, here: WorkerRuntime, settings: Settings) -> None:
        self._here, self._settings = here, settings
        self._opening: asyncio.Task[Session] | None = None

    async def opened(self) -> Session:
        """Return the open session. Raises `FleetUnavailable`."""
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening = self._here.loop.create_task(self._open(), name="toolfleet-worker-session")
        return await asyncio.shield(opening)  # others may wait for it, too

    async def _open(self) -> Session:
        session = Session(self._settings, has_agent=False)
        await session.open()
        self._here.settle.append(session.aclose)
        return session


@asynccontextmanager
async def worker_job_service(settings: Settings) -> AsyncGenerator["JobService"]:
    """Open the service for jobs of `worker_session`. Raises `FleetUnavailable`."""
    async with worker_session(settings) as session:
        yield session.jobs
