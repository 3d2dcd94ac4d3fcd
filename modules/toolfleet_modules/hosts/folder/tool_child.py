"""Runs the tools of a folder, in a process of its own: `python -m toolfleet_modules.hosts.folder.tool_child DESCRIPTOR LIMITS [PATH…]`.

The files are imported from the texts that their host has read: nothing is looked for on disk. What comes over the socket:
`load` (files, and which of them to import now), `call`, `cancel`, `ping`, `end`. What goes: `ready`, `loading` and
`loaded` for each file, `all_loaded`, `progress`, `log`, and for each call one of `reply`, `busy`, `not_begun`, `cancelled`.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from toolfleet_modules.calls.reply import Reply
from toolfleet_modules.calls.work import IN_TOOL, RunMeans, guard_tasks
from toolfleet_modules.hosts.folder.foreign_tools import (
    is_langchain_tool,
    langchain_function,
    langchain_tools_in,
    tag_function,
    tag_tools_in,
    takes_context,
)
from toolfleet_modules.hosts.folder.frames import PACKAGE, Frames, FramesClosed, Head, SourceText
from toolfleet_modules.hosts.guard import enclose
from toolfleet_modules.sdk.tool import Facts, Tool, ToolMark, mark_of
from toolfleet_registry import spans
from toolfleet_registry.contracts import Conversation
from toolfleet_registry.contracts.call_context import (
    MOST_MESSAGES,
    Context,
    LogBudget,
    LogLevel,
    LogMessage,
    LogSink,
    Progress,
    ToolContext,
    log_to,
    report_to,
)
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.threads import NotBegun, Threads
from toolfleet_registry.spans import OpenSpan, TraceContext, Tracing, carrying, read_context, switch_here, tracing_of

_log = logging.getLogger("toolfleet.host")

_LONGEST_MESSAGE = 500

_MISSING: Final = "the process of the tools is not traced: %s"

_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LoadFault:
    """The reason why a file is not imported. `line` is in this file, if the fault has a place there."""

    kind: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class MarkedTool:
    """A tool and its mark."""

    tool: Tool
    mark: ToolMark


class ToolModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The files of a folder as a package of this process, and functions that are named by dotted paths. `texts` are by the files' names without `.py`; `secrets`: which their tools may name.

    `faults` has what went wrong, also with files that others import.
    """

    def __init__(self, module: str, texts: Mapping[str, SourceText], secrets: Sequence[str] = ()) -> None:
        self._secrets = frozenset(secrets)
        self.faults: dict[str, LoadFault] = {}
        self._module = module
        self._texts = texts
        self._tools: dict[str, dict[str, MarkedTool]] = {}

    def install(self) -> None:
        """Let Python find them."""
        sys.meta_path.insert(0, self)

    def tools(self, stem: str) -> Mapping[str, MarkedTool]:
        """Return the tools of a file, or of a dotted path, by their full names; it is imported when they are asked for first. With a fault, there are none."""
        known = self._tools.get(stem)
        if known is None:
            known = self._tools[stem] = self._load(stem)
        return known

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a file by its name in the package, or the package."""
        del path, target
        package, _, stem = fullname.partition(".")
        if package != PACKAGE or (stem and stem not in self._texts):
            return None
        origin = self._texts[stem].path if stem else None
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=not stem)

    def exec_module(self, module: ModuleType) -> None:
        """Run a file's text."""
        stem = module.__name__.partition(".")[2]
        if not stem:
            return
        source = self._texts[stem]
        module.__file__ = source.path
        try:
            exec(compile(source.text, source.path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what it is for
        except BaseException as exc:
            self.faults.setdefault(stem, _fault_of(exc, source.path))
            raise

    def _load(self, stem: str) -> dict[str, MarkedTool]:
        path = self._texts[stem].path if stem in self._texts else stem
        try:
            if "." in stem:
                return self._named(stem)
            module = importlib.import_module(f"{PACKAGE}.{stem}")
            return self._marked_in(module)
        except BaseException as exc:  # noqa: BLE001 - also SystemExit: the file's author may raise anything
            _log.warning("%s does not load", path, exc_info=exc)
            self.faults.setdefault(stem, _fault_of(exc, path))
            return {}

    def _named(self, path: str) -> dict[str, MarkedTool]:
        """Return the tool of the function with this dotted path, marked or not."""
        module, _, name = path.rpartition(".")
        function = getattr(importlib.import_module(module), name, None)
        if is_langchain_tool(function):
            tool = self._made_of(langchain_function, function)
            return {tool.definition.name: MarkedTool(tool, ToolMark())}
        if not callable(function):
            raise _InvalidTool(f"{module} has no function {name!r}.")
        mark = mark_of(function) or ToolMark()
        tool = self._tool_of(function, mark)
        return {tool.definition.name: MarkedTool(tool, mark)}

    def source(self, path: str) -> dict[str, str] | None:
        """Return the file and digest of a function with a dotted path; `None` for a file of the folder, which the host has read."""
        module = sys.modules.get(path.rpartition(".")[0])
        if module is None:
            return None
        file = getattr(module, "__file__", None) or module.__name__
        data = Path(file).read_bytes() if Path(file).is_file() else file.encode()
        return {"file": file, "digest": hashlib.sha256(data).hexdigest()}

    def _marked_in(self, module: ModuleType) -> dict[str, MarkedTool]:
        """Return the marked tools that were defined there, without those imported from another file."""
        found: dict[str, MarkedTool] = {}
        for thing in list(vars(module).values()):
            mark = mark_of(thing)
            if mark is None or getattr(thing, "__module__", None) != module.__name__:
                continue
            tool = self._tool_of(thing, mark)
            known = found.get(tool.definition.name)
            if known is not None and known.tool.function is not thing:
                raise _InvalidTool(f"It has two tools named {tool.definition.name!r}.")
            found[tool.definition.name] = MarkedTool(tool, mark)
        made = [self._tag_of(each) for each in tag_tools_in(module)]
        made += [self._made_of(langchain_function, each) for each in langchain_tools_in(module)]
        for tool in made:
            if tool.definition.name in found:
                raise _InvalidTool(f"It has two tools named {tool.definition.name!r}.")
            found[tool.definition.name] = MarkedTool(tool, ToolMark())
        return found

    def _tag_of(self, tool: Any) -> Tool:
        made = self._made_of(tag_function, tool)
        own = {"listed": tool.listed, "takes_context": takes_context(tool)}
        return replace(made, definition=made.definition.model_copy(update=own))

    def _made_of(self, read: Callable[[Any], tuple[Callable[..., Any], Facts]], thing: Any) -> Tool:
        try:
            return Tool.of(self._module, *read(thing))
        except (TypeError, ValueError, NameError) as exc:
            raise _InvalidTool(str(exc)) from exc

    def _tool_of(self, function: Any, mark: ToolMark) -> Tool:
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
        try:
            tool = Tool.of(self._module, function, mark.facts)
        except (TypeError, ValueError) as exc:
            raise _InvalidTool(str(exc), line) from exc
        if missing := sorted(set(mark.secrets) - self._secrets):
            message = f"{tool.definition.name} names the secret {missing[0]!r}, which its host has not."
            raise _InvalidTool(message, line, "SecretMissing")
        return tool


def _find_packages_in(folder: str) -> None:
    """Let Python find packages there, before those that the host has for itself, and after its own library."""
    at = next((at for at, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))), None)
    sys.path.insert(len(sys.path) if at is None else at, folder)
    importlib.invalidate_caches()


class _InvalidTool(Exception):
    def __init__(self, message: str, line: int | None = None, kind: str = "InvalidTool") -> None:
        super().__init__(message)
        self.line, self.kind = line, kind


def _fault_of(exc: BaseException, path: str) -> LoadFault:
    """Return the fault in one sentence. Messages of other exceptions may be a program's data: only the log has them."""
    line = next(
        (frame.lineno for frame in reversed(traceback.extract_tb(exc.__traceback__)) if frame.filename == path), None
    )
    if isinstance(exc, _InvalidTool):
        return LoadFault(exc.kind, str(exc)[:_LONGEST_MESSAGE], exc.line)
    if isinstance(exc, ImportError):
        return LoadFault("ImportError", f"{str(exc)[:_LONGEST_MESSAGE]}.", line)
    kind = type(exc).__name__
    return LoadFault(kind, f"It raised {kind} when it was imported; its host's log says more.", line)


class ChildTrace:
    """The traces of one process, as service `module`. By its own environment, which has no more variables than its host gives it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._tracing: Tracing | None = None
        self._is_faulty = False

    def set_up(self) -> Tracing | None:
        """Return the tracing of this process: a provider that a tool has set is used as it is.

        `None`: it is not traced.
        """
        if self._tracing is None and not self._is_faulty:
            try:
                self._tracing = tracing_of(switch_here(), self._module, is_global=True)
            except SettingsError as exc:  # no reason to serve nothing
                _log.warning(_MISSING, exc)
                self._is_faulty = True
        return self._tracing

    async def of_call(
        self, parent: TraceContext | None, tool: str, call_id: str | None, run: Awaitable[Reply]
    ) -> Reply:
        """Run a call below its host's span. A `parent` of `None`: its host is not traced, and neither is the call."""
        if parent is None:
            return await run
        tracing = self.set_up()
        if tracing is None:
            with carrying(parent):
                return await run
        said = {spans.GEN_AI_OPERATION: spans.EXECUTE_TOOL, spans.GEN_AI_TOOL_NAME: tool}
        started = tracing.start(spans.execute_name(tool), "internal", said, parent=parent)
        with tracing.within(started):
            if isinstance(started, TraceContext):
                return await run
            started.note({spans.GEN_AI_TOOL_TYPE: "function", spans.GEN_AI_TOOL_CALL_ID: call_id})
            return await _recorded(started, run)


async def _recorded(span: OpenSpan, run: Awaitable[Reply]) -> Reply:
    try:
        reply = await run
        if not (reply.is_success or reply.handle or reply.is_question):
            span.fail("cancelled" if reply.is_stopped else "tool_error")
    except BaseException as exc:
        span.fail(type(exc).__name__)
        raise
    finally:
        span.end()
    return reply


class ToolChild:
    """The child's side of the host's socket. `ended` is set when the host has gone, or tells it to end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.frames = Frames(self._on_frame, self._on_lost)
        self._progress = ProgressSender(self._send)
        self._modules = ToolModules("", {})
        self._trace = ChildTrace("")
        self._means = RunMeans(Threads(1), 0)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loading = asyncio.Lock()
        self._handlers = {"load": self._load, "call": self._call, "cancel": self._cancel, "ping": self._ping}

    def _on_frame(self, head: Head, body: bytes) -> None:
        handler = self._handlers.get(head.get("kind", ""))
        if handler is None:
            self.ended.set()
        else:
            handler(head, body)

    def _on_lost(self) -> None:
        os.killpg(0, signal.SIGKILL)  # the host is gone: and so are the processes that a tool has started here

    def _load(self, head: Head, body: bytes) -> None:
        """Import the files, one after the other, in the main thread: with each, the host is told before and after."""
        texts = {stem: SourceText(*each) for stem, each in json.loads(body).items()}
        threads = Threads(head["threads"])
        self._means = RunMeans(threads, head["result_bytes"], shows_exceptions=head["exception_text"])
        self._modules = ToolModules(head["module"], texts, head["secrets"])
        self._modules.install()
        if head["packages"] is not None:
            _find_packages_in(head["packages"])
        sys.path.extend(each for each in head["python_path"] if each not in sys.path)
        for stem in head["stems"]:
            self._send({"kind": "loading", "file": stem})
            offered = [
                {
                    "definition": each.tool.definition.model_dump(mode="json", exclude_none=True),
                    "schemas": [each.tool.definition.input_schema, each.tool.definition.output_schema],
                    "runs_in": each.mark.runs_in,
                    "secrets": list(each.mark.secrets),
                    "source": self._modules.source(stem),
                }
                for each in self._modules.tools(stem).values()
            ]
            self._send({"kind": "loaded", "file": stem}, json.dumps(offered).encode())
        self._trace = ChildTrace(head["module"])
        self._trace.set_up()  # before the first call, which would wait for it
        faults = {stem: [each.kind, each.message, each.line] for stem, each in self._modules.faults.items()}
        self._send({"kind": "all_loaded"}, json.dumps(faults).encode())

    def _call(self, head: Head, body: bytes) -> None:
        inside = contextvars.copy_context()
        number = int(head["id"])
        task = asyncio.get_running_loop().create_task(self._answer(number, head, body), context=inside)
        self._tasks[number] = task
        task.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        if task.cancelled():  # perhaps before its first step: the host waits for a word all the same
            self._send({"kind": "cancelled", "id": number})

    def _cancel(self, head: Head, _: bytes) -> None:
        if (task := self._tasks.get(int(head["id"]))) is not None:
            task.cancel()

    def _ping(self, _: Head, __: bytes) -> None:
        self._send({"kind": "pong"})

    async def _answer(self, number: int, head: Head, body: bytes) -> None:
        try:
            reply = await self._reply(number, head, body)
            said = {"success": reply.is_success, "nothing": reply.surely_nothing, "stopped": reply.is_stopped}
            self._send({"kind": "reply", "id": number, **said}, reply.body.encode())
        except ModuleBusy as exc:
            self._send({"kind": "busy", "id": number, "seconds": exc.retry_after_seconds})
        except NotBegun:
            self._send({"kind": "not_begun", "id": number})

    async def _reply(self, number: int, head: Head, body: bytes) -> Reply:
        name = str(head["tool"])
        tool = await self._tool(str(head["file"]), name)
        if tool is None:
            return Reply.failure(name, f"{name} is not there: its file did not load.", effect_state="none")
        context = _context_of(head, name)

        def take(progress: Any) -> None:
            self._progress.take(number, progress)

        context._report = take
        log = None if head["log_level"] is None else LogSender(self._send, number, head["log_level"])
        context._log = None if log is None else log.sink
        run = tool.begin(json.loads(body), context, self._means)
        if isinstance(run, Reply):
            return run
        report_to(take)
        log_to(context._log)
        IN_TOOL.set(True)
        try:
            return await self._trace.of_call(read_context(head["trace"]), name, context.call_id, run.run())
        except asyncio.CancelledError:
            context._cancelled = True
            raise
        finally:
            if log is not None:
                await log.end()

    async def _tool(self, stem: str, name: str) -> Tool | None:
        """Return the tool; its file is imported in a thread if this is its first call."""
        async with self._loading:
            tools = await asyncio.to_thread(self._modules.tools, stem)
        found = tools.get(name)
        return found.tool if found is not None else None

    def _send(self, head: Head, body: bytes = b"") -> None:
        try:
            self.frames.send(head, body)
        except FramesClosed:
            self.ended.set()


def _context_of(head: Head, name: str) -> Context:
    conversation = Conversation.model_validate(head["conversation"])
    context = Context(
        name, head["call_id"], head["user_id"], head["permission"], conversation, secrets=dict(head["secrets"])
    )
    context._ends_at, context._begin_by = head["ends_at"], head["begin_by"]
    if (known := head["agent_context"]) is not None:
        context._agent_context = ToolContext.model_validate(known)
    return context


async def _serve(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    guard_tasks(loop)
    child = ToolChild()
    await loop.create_connection(lambda: child.frames, sock=socket.socket(fileno=descriptor))
    child.frames.send({"kind": "ready"})
    await child.ended.wait()


def main(descriptor: int, limits: dict[str, int | None], paths: list[str]) -> None:
    """Serve until the host says that this is the end, or is gone."""
    enclose(limits, paths)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(name)s: %(message)s")
    asyncio.run(_serve(descriptor))


class LogSender:
    """Sends log messages, in the running loop; its `sink` is thread-safe."""

    def __init__(self, send: Callable[[Head, bytes], None], number: int, least: LogLevel) -> None:
        self.sink = LogSink(least, self._take)
        """Takes the messages."""
        self._send, self._number = send, number
        self._loop = asyncio.get_running_loop()
        self._budget = LogBudget(MOST_MESSAGES - 1)  # the last one may be the word on those that were left out

    async def end(self) -> None:
        """Return when all that was said so far is on its way."""
        await asyncio.sleep(0)
        if (notice := self._budget.notice()) is not None:
            self._send_body(json.dumps(notice.fields()).encode())

    def _take(self, message: LogMessage) -> None:
        body = json.dumps(message.fields()).encode()
        if self._budget.takes(len(body)):
            with contextlib.suppress(RuntimeError):  # the loop has ended, and a thread has not noticed
                self._loop.call_soon_threadsafe(self._send_body, body)

    def _send_body(self, body: bytes) -> None:
        self._send({"kind": "log", "id": self._number}, body)


class ProgressSender:
    """Sends progress, in the running loop; `take` is thread-safe."""

    def __init__(self, send: Callable[[Head], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._latest: dict[int, Progress] = {}
        self._is_waiting = False

    def take(self, number: int, progress: Progress) -> None:
        """Keep the latest of a call, for the next time that there is something to send."""
        self._latest[number] = progress
        if not self._is_waiting:
            self._is_waiting = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and a thread has not noticed
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        latest, self._latest = self._latest, {}
        for number, each in list(latest.items()):
            self._send({"kind": "progress", "id": number, "fraction": each.fraction, "message": each.message})
        if latest:
            self._loop.call_later(_PAUSE_SECONDS, self._tell)
        else:
            self._is_waiting = False


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
