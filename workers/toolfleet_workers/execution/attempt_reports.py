"""Takes what one attempt reports: its progress and log messages, which one writer for all calls passes on, and its span.

No call waits for the writer, least of all a result: it has a connection of its own, is made of the latest report of each call, and
is dropped where Redis is away or slow, and once the call has ended. The span is a child of the message's, with links to earlier
attempts.
"""

import asyncio
import contextlib
import json
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry
from redis.exceptions import ResponseError

from toolfleet_registry import spans
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.call_context import (
    MOST_BYTES,
    MOST_MESSAGES,
    LogBudget,
    LogLevel,
    LogMessage,
    LogSink,
    Progress,
    log_to,
)
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import OpenSpan, Started, TraceContext, Tracing, attempt_span_id, carry
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.aio import end
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.messages.signing import Signatures, after_json
from toolfleet_tasks.queues import queue_for
from toolfleet_tasks.redis_connection import RedisConnectionLost
from toolfleet_tasks.tracing import message_attributes, system_of, trace_of
from toolfleet_tasks.worker_runtime import RunningTask, WorkerRuntime

if TYPE_CHECKING:
    from toolfleet_workers.execution.execute import Execution


log = get_logger(__name__)

_EVERY_SECONDS = 0.2
_PATIENCE_SECONDS = 2.0  # for Redis: to be there, and to take a batch
_BATCH = 500  # calls at a time, of less than a kB each

_END_SECONDS = 1.0  # for Redis to take what was said last: the call's end waits for it
# A module may say as much, and then that it has left something out; what is around a message has some bytes, too.
_MOST, _BYTES = MOST_MESSAGES + 1, 2 * MOST_BYTES

_LOG_BATCH = 200  # messages, each of at most 16 KiB or a little more
_MOST_BYTES = 16 * 2**20  # that wait for Redis, of all calls together

Written = Callable[[], object]
"""Is called when a message was published, or dropped."""


class Reports:
    """The reports of one running call: a sink for `toolfleet_registry.contracts.call_context`, from any thread, until `is_over`.

    If the call's tool hides its results only the fraction is passed on: the tool's text could quote them.
    """

    __slots__ = ("_is_listed", "_latest", "call", "is_over", "settings")

    def __init__(self, call: PublishedCall, settings: Settings) -> None:
        self.call = call
        self.settings = settings
        self._latest: Progress | None = None
        self._is_listed = False
        self.is_over = False
        """Whether the attempt is: nothing that is still reported counts."""

    def take(self, progress: Progress) -> None:
        """Take the call's present progress; it replaces a report that was not fetched yet."""
        if self.is_over:
            return
        self._latest = Progress(fraction=progress.fraction) if self.call.hides_results else progress
        here = worker_runtime.current()
        if self._is_listed or here is None:  # the worker's pool has stopped
            return
        self._is_listed = True
        if threading.get_ident() == here.thread_id:
            _list(here, self)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                here.loop.call_soon_threadsafe(_list, here, self)

    def stays_listed(self) -> bool:
        """Return whether there is something to fetch; if not, the next report is listed again."""
        if self._latest is None or self.is_over:
            self._is_listed = False  # first, as in `fetch`: a thread may report between these lines
        return self._latest is not None and not self.is_over

    def fetch(self) -> Progress | None:
        """The latest that was not fetched yet; `None` if the attempt is over."""
        self._is_listed = False  # first: what comes from a thread in between lists itself again
        latest, self._latest = self._latest, None
        return None if self.is_over else latest


class ProgressBoard:
    """The worker's one writer of progress. Belongs to the loop of its connections."""

    def __init__(self, here: WorkerRuntime, settings: Settings) -> None:
        self._loop = here.loop
        self._keys = settings.keys
        self._signatures = Signatures(settings, "progress")
        self._connection = here.to(str(settings.redis_url), master=settings.sentinel_master, purpose="progress")
        self._listed: list[Reports] = []
        self._task: asyncio.Task[None] | None = None
        self._is_dropping = False
        here.settle.append(self.aclose)

    def add(self, reports: Reports) -> None:
        """Write soon what this call has to say. On the loop's thread."""
        self._listed.append(reports)  # once each, until it is fetched
        if self._task is None or self._task.done():
            # In a context of its own: it outlives the call that happens to be the first.
            self._task = self._loop.create_task(self._write_all(), name="toolfleet-progress", context=Context())

    async def aclose(self) -> None:
        """Write no more."""
        if self._task is not None:
            await end([self._task])

    async def _write_all(self) -> None:
        """Write until there is nothing more to write, and a moment longer: the next one has to wait its turn."""
        while self._listed:
            listed = [reports for reports in self._listed if reports.stays_listed()]
            batch, self._listed = listed[:_BATCH], listed[_BATCH:]
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._connection.connected()
                    await self._write(batch)
                self._is_dropping = False
            except (RedisConnectionLost, TimeoutError, ResponseError) as exc:
                self._drop(batch, exc)
            except Exception as exc:  # noqa: BLE001 - a defect of ours: it must not end the progress of all calls
                self._drop(batch, exc)
            await asyncio.sleep(_EVERY_SECONDS)

    async def _write(self, batch: list[Reports]) -> None:
        written: list[asyncio.Future[object]] = []
        for reports in batch:
            progress = reports.fetch()
            left = reports.call.deadline_at - fleet_clock.now()
            if progress is None or left <= 0:
                continue
            key, call_id = self._keys.progress(reports.call.call_id), reports.call.call_id
            text = json.dumps(progress.model_dump())  # escaped: a tool's words may hold half a character
            content = after_json(text, self._signatures.of(call_id, text)).encode()
            written.append(self._connection.send("SET", key, content, "EX", math.ceil(left)))
            written.append(self._connection.send("PUBLISH", key, content))
        for answer in await asyncio.gather(*written, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def _drop(self, batch: list[Reports], error: Exception) -> None:
        """Drop reports made while Redis was away: they are outdated when it is back."""
        if not self._is_dropping:  # it may be so for hours
            self._is_dropping = True
            log.warning("progress_dropped", error=str(error) or repr(error))
        for reports in (*batch, *self._listed):
            reports.fetch()
        self._listed.clear()


def _list(here: WorkerRuntime, reports: Reports) -> None:
    """Add the reports to the board of this worker's loop, which is made with the first report."""
    here.part(ProgressBoard, reports.settings).add(reports)


class AttemptLog:
    """The log of one attempt at a `call` whose caller wants messages of level `least` or above.

    From its creation all log messages of this task go there, until `end`.
    """

    def __init__(self, call: PublishedCall, least: LogLevel, settings: Settings) -> None:
        self._call_id, self._settings = call.call_id, settings
        self._budget = LogBudget(_MOST, _BYTES)
        self._unwritten = 0
        self._is_written = asyncio.Event()
        self._is_over = False
        log_to(LogSink(least, self._take))

    async def end(self) -> None:
        """Take no more, once all that was said is published; Redis has a second for that."""
        log_to(None)
        await asyncio.sleep(0)  # what threads have said comes first
        self._is_over = True
        if (notice := self._budget.notice()) is not None:
            self._publish(json.dumps(notice.fields()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while self._unwritten:
                    self._is_written.clear()
                    await self._is_written.wait()

    def _take(self, message: LogMessage) -> None:
        here = worker_runtime.current()
        if self._is_over or here is None:  # the worker's pool has stopped
            return
        text = json.dumps(message.fields())  # escaped: it may hold half a character
        if not self._budget.takes(len(text)):
            return
        if threading.get_ident() == here.thread_id:
            self._publish(text)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                here.loop.call_soon_threadsafe(self._publish, text)

    def _publish(self, text: str) -> None:
        here = worker_runtime.current()
        if here is None:
            return
        if here.part(LogWriter, self._settings).add(self._call_id, text, self._written):
            self._unwritten += 1
        else:
            self._budget.left_out += 1

    def _written(self) -> None:
        self._unwritten -= 1
        self._is_written.set()


class LogWriter:
    """The worker's one writer of log messages. Belongs to the loop of its connections.

    Nothing is kept: who listens hears them. It has the connection on which progress is written, and what Redis does
    not take in time is dropped.
    """

    def __init__(self, here: WorkerRuntime, settings: Settings) -> None:
        self._loop = here.loop
        self._connection = here.to(str(settings.redis_url), master=settings.sentinel_master, purpose="progress")
        self._keys, self._signatures = settings.keys, Signatures(settings, "log")
        self._waiting = deque[tuple[str, bytes, Written]]()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._is_dropping = False
        here.settle.append(self.aclose)

    def add(self, call_id: str, text: str, written: Written) -> bool:
        """Publish a call's message soon. False if too many wait already; `written` is not called then. On the loop's thread."""
        content = after_json(text, self._signatures.of(call_id, text)).encode()
        if self._bytes + len(content) > _MOST_BYTES:
            return False
        self._bytes += len(content)
        self._waiting.append((self._keys.progress(call_id, "-log"), content, written))
        if self._task is None or self._task.done():
            # In a context of its own: it outlives the call that happens to be the first.
            self._task = self._loop.create_task(self._write_all(), name="toolfleet-logs", context=Context())
        return True

    async def aclose(self) -> None:
        """Write no more."""
        if self._task is not None:
            await end([self._task])

    async def _write_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_LOG_BATCH, len(self._waiting)))]
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._connection.connected()
                    await self._publish(batch)
                self._is_dropping = False
            except (RedisConnectionLost, TimeoutError, ResponseError) as exc:
                batch += self._drop(exc)
            except Exception as exc:  # noqa: BLE001 - a defect of ours: it must not end the log messages of all calls
                batch += self._drop(exc)
            for _, content, written in batch:
                self._bytes -= len(content)
                written()

    async def _publish(self, batch: list[tuple[str, bytes, Written]]) -> None:
        sent = [self._connection.send("PUBLISH", channel, content) for channel, content, _ in batch]
        for answer in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def _drop(self, error: Exception) -> list[tuple[str, bytes, Written]]:
        """Drop waiting messages: a call that waits for their publishing must not wait for a Redis that is away."""
        if not self._is_dropping:  # it may be so for hours
            self._is_dropping = True
            log.warning("log_messages_dropped", error=str(error) or repr(error))
        dropped, self._waiting = list(self._waiting), deque()
        return dropped


def processed(task: RunningTask, claim: Claim, execution: "Execution") -> Coroutine[Any, Any, str]:
    """Run a claimed call of `task` in the span of its attempt, or directly if it is not recorded."""
    parent = trace_of(task.request.get)
    place = task.app.tracing.unrecorded(parent)
    if place is None:
        return _recorded(task, claim, execution, parent)
    carry(place)  # for good: each call has a context of its own
    return execution.run()


async def _recorded(task: RunningTask, claim: Claim, execution: "Execution", parent: TraceContext | None) -> str:
    tracing, request = task.app.tracing, task.request
    started = _start(tracing, request, claim, parent, system_of(task.app.settings.broker))
    with tracing.within(started):
        if isinstance(started, TraceContext):
            return await execution.run()
        try:
            return await execution.run()
        except Retry:
            raise
        except (Ignore, Reject):
            _go_on(started, execution)
            raise
        except BaseException as exc:
            started.fail(type(exc).__name__)
            raise
        finally:
            _say(started, execution.came_to)
            started.end()


def _start(tracing: Tracing, request: Any, claim: Claim, parent: TraceContext | None, system: str) -> Started:
    call = claim.call
    queue, is_attempt = queue_for(call), claim.granted == "go"
    own_id = attempt_span_id(call.call_id, claim.attempts) if is_attempt else 0
    started = tracing.start(
        spans.process_name(queue),
        "consumer",
        {
            spans.MESSAGING_SYSTEM: system,
            spans.MESSAGING_OPERATION_NAME: "process",
            spans.MESSAGING_OPERATION_TYPE: "process",
            spans.MESSAGING_DESTINATION: queue,
        },
        parent=parent,
        links=_links(tracing, claim, parent),
        span_id=own_id,
    )
    if not isinstance(started, TraceContext):
        started.note(message_attributes(call))
        started.note(
            {
                spans.MESSAGING_CLIENT_ID: getattr(request, "hostname", None),
                spans.GEN_AI_TOOL_NAME: call.tool_name,
                spans.ATTEMPT: claim.attempts,
                spans.FENCING_TOKEN: claim.token,
                spans.GRANTED: claim.granted,
                spans.QUEUED_SECONDS: round(max(fleet_clock.now() - call.published_at, 0), 6),
            }
        )
    return started


def _links(tracing: Tracing, claim: Claim, parent: TraceContext | None) -> list[tuple[TraceContext, str]]:
    """Return links to the message's creation, and to the attempt before: one that was retried, or whose worker has died, or that continues."""
    if parent is None:
        return []
    links = [(parent, "creation")]
    earlier = claim.attempts - (claim.granted == "go")
    if earlier > 0 and tracing.has_attempt_ids:
        is_lost = claim.granted not in {"go", "accepted"} or f"{earlier} never_closed" in claim.log
        word = "accepted_attempt" if claim.granted == "accepted" else "lost_attempt" if is_lost else "retried_attempt"
        links.append((parent.at(attempt_span_id(claim.call.call_id, earlier)), word))
    return links


def _go_on(span: OpenSpan, execution: "Execution") -> None:
    """Note the state of an attempt without an end here: another worker has the call, or its module continues it, or asks."""
    if execution.came_to is None:
        span.note({spans.EFFECT_STATE: "unknown"})


def _say(span: OpenSpan, result: ToolResult | None) -> None:
    if result is None:
        return
    span.note({spans.EFFECT_STATE: result.effect_state})
    if not result.success:
        span.fail(result.error_code or spans.OTHER_ERROR)
