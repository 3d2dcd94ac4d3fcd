"""Makes a module of functions, or of tools that a host runs: its tools, and the ASGI app that serves them."""

import inspect
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

from toolfleet_modules.calls.authentication import KEY_VARIABLE
from toolfleet_modules.calls.reply import Follower, StatusAnswer
from toolfleet_modules.sdk.tool import Facts, Tool
from toolfleet_registry.contracts import Level, ModuleManifest
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.contracts.names import is_module_name
from toolfleet_registry.once.port import MemoryReplies, OnceStore

if TYPE_CHECKING:  # an app needs starlette, and a test httpx; a manifest needs neither, and runs nothing
    from starlette.applications import Starlette

    from toolfleet_modules.calls.work import ServedTool
    from toolfleet_modules.sdk.client import ModuleClient

Hook: TypeAlias = Callable[[], Any]
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a module.

    `calls`: at work at once, `threads`: of them in plain functions; `progress_seconds`: between two lines of progress.

    `accepts`: whether a follower knows the states of calls that the module has accepted.
    """

    calls: int
    threads: int
    request_bytes: int
    result_bytes: int
    progress_seconds: float
    accepts: bool = False


class ServedModule:
    """A module with its app. Subclasses have `tools`, a `manifest` and a `key`.

    Args:
        name: The module's name.
        description: What the module is for.
        replies: The memory of the outcomes of calls, which the app closes; `None` for the memory of this process.
        longest_call_seconds: How long a caller waits for one call at most, retries included.
        limits: Its limits; what `accepts` says is decided by its `follower`.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str,
        replies: OnceStore | None,
        longest_call_seconds: float,
        limits: Limits,
    ) -> None:
        self.name = name
        self.description = description
        self.replies: OnceStore = MemoryReplies() if replies is None else replies
        self.longest_call_seconds = longest_call_seconds
        self.limits = limits
        self.replica_id = ""
        """The id by which the fleet knows this process among those that serve the module; "" if by none."""
        self.startup: list[Hook] = []
        """The hooks to run before the first call."""
        self.shutdown: list[Hook] = []
        """The hooks to run after the last call."""
        self.lifespans: list[Lifespan] = []
        """The context managers to enter before the first call, and to leave after the last."""
        self.follower: Follower | None = None
        """The follower of calls that the module has accepted; `None` if it accepts none."""
        self._app: Starlette | None = None

    @property
    def tools(self) -> "Mapping[str, ServedTool]":
        """The tools by their full names: another mapping whenever they change."""
        raise NotImplementedError

    @property
    def manifest(self) -> ModuleManifest:
        """The answer of `GET /manifest`."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """The keys that verify tokens, as `authentication.keys_in` reads them; empty where no token is checked."""
        raise NotImplementedError

    @property
    def app(self) -> "Starlette":
        """The ASGI app, made at the first use."""
        if self._app is None:
            from toolfleet_modules.sdk.app import app_of  # a manifest needs no starlette

            self._app = app_of(self)
        return self._app


class Module(ServedModule):
    """A service that owns tools.

    ::

        module = Module("owls", description="Counts owls.")

        @module.tool(effect="read")
        async def count(day: int) -> dict[str, int]:
            \"\"\"How many owls were seen on a day.\"\"\"
            return {"owls": 5}

        app = module.app  # uvicorn main:app

    Args:
        name: The module's name, with which the full names of its tools begin: at most 64 letters, digits, `_` and `-`.
        description: What the module is for.
        version: The version of its tools, unless a tool has its own.
        replies: The memory of the outcomes of calls, so that a repeated call is not run twice. The default is the
            memory of this process.
        key: The key that `toolfleet modules key <module>` prints; with it, only calls of the fleet are run. The default
            is the variable `TOOLFLEET_MODULE_KEY`.
        concurrency: The number of calls that run at once. A further call is refused, and the fleet repeats it soon.
        threads: The number of calls that run at once in plain functions.
        max_request_bytes: The largest request; a larger one is refused.
        max_result_bytes: The largest result; a larger one is a failure that says so.
        progress_seconds: The shortest time between two reports of a call's progress.
        longest_call_seconds: How long a caller waits for one call at most, retries included.
        retries_undeclared: Whether a tool without an effect is tried once more when it has failed, and runs again under
            the same call id. Set it only if a second run of none of these tools does harm.

    Raises:
        ValueError: The name is invalid, or a limit is not positive.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        version: str | None = None,
        replies: OnceStore | None = None,
        key: str | None = None,
        concurrency: int = 1000,
        threads: int = 32,
        max_request_bytes: int = 8 * 2**20,
        max_result_bytes: int = 4 * 2**20,
        progress_seconds: float = 0.2,
        longest_call_seconds: float = 4 * 3600,
        retries_undeclared: bool = False,
    ) -> None:
        if not is_module_name(name):
            raise ValueError(f"{name[:80]!r} is no name for a module: letters, digits, _ and -, at most 64.")
        if min(concurrency, threads, max_request_bytes, max_result_bytes, longest_call_seconds) <= 0:
            raise ValueError("Every limit of a module must be positive.")
        super().__init__(
            name,
            description=description,
            replies=replies,
            longest_call_seconds=longest_call_seconds,
            limits=Limits(concurrency, threads, max_request_bytes, max_result_bytes, progress_seconds),
        )
        self.version = version
        self.retries_undeclared = retries_undeclared
        self._key = key
        self._tools: dict[str, Tool] = {}

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, /, **facts: Unpack[Facts]) -> Callable[[F], F]: ...

    def tool(self, function: F | None = None, /, **facts: Unpack[Facts]) -> F | Callable[[F], F]:
        """Offer a function as a tool: as a decorator, with or without arguments. The function itself is not changed.

        The function's name, signature and docstring (Google's style: `Args:` describes parameters) make the tool. A
        parameter `user_id` gets the call's user, and one that is annotated `Context` the call's context; models see
        neither. A plain function runs in a thread.

        Args:
            function: The function, async or plain.
            **facts: What the function does not say of itself, see `Facts`.

        Returns:
            The function, or the decorator.

        Raises:
            TypeError: The function or a fact has a wrong type, or yields its results.
            ValueError: The function or a fact is invalid, or the name is taken.
        """
        if function is not None:
            return self.add(function)
        return lambda each: self.add(each, **facts)

    def add(self, function: F, **facts: Unpack[Facts]) -> F:
        """Offer an existing function as a tool, such as a method of an object with state.

        Args:
            function: The function, async or plain.
            **facts: What the function does not say of itself, see `Facts`.

        Returns:
            The function.

        Raises:
            TypeError: As `tool`.
            ValueError: As `tool`, or the module's app exists already.
        """
        if self._app is not None:
            raise ValueError(f"{self.name!r} has its app already: add tools before.")
        if self.version is not None:
            facts.setdefault("version", self.version)
        tool = Tool.of(self.name, function, facts, is_rerun=self.retries_undeclared)
        if tool.definition.name in self._tools:
            raise ValueError(f"{self.name!r} has two tools named {tool.definition.name!r}.")
        self._tools[tool.definition.name] = tool
        return function

    def status(self, function: F) -> F:
        """Register the function that returns the state of an accepted call, as a decorator.

        ::

            @module.status
            async def where(handle: str, *, cancel: bool) -> StatusAnswer: ...

        Args:
            function: Async or plain. `handle` is what `Accepted` has named, and `cancel` whether the call is cancelled.
                A function that asks its caller also has a parameter `inputs`: the latest answers, or `None`.

        Returns:
            The function.

        Raises:
            ValueError: There is such a function already, or the module's app exists already.
        """
        if self._app is not None or self.follower is not None:
            raise ValueError(f"{self.name!r} has its {'app' if self._app else 'status'} already.")
        self.follower = FunctionFollower(function).status
        return function

    def on_startup(self, hook: F) -> F:
        """Run a function before the first call, as a decorator.

        Args:
            hook: A function without parameters, async or plain.

        Returns:
            The function.
        """
        self.startup.append(hook)
        return hook

    def on_shutdown(self, hook: F) -> F:
        """Run a function after the last call, as a decorator.

        Args:
            hook: A function without parameters, async or plain.

        Returns:
            The function.
        """
        self.shutdown.append(hook)
        return hook

    def lifespan(self, manager: F) -> F:
        """Enter an async context manager before the first call, and leave it after the last, as a decorator.

        Args:
            manager: A function without parameters that makes the context manager.

        Returns:
            The function.
        """
        self.lifespans.append(manager)
        return manager

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The offered tools, by full names."""
        return self._tools

    @property
    def manifest(self) -> ModuleManifest:
        """The answer of `GET /manifest`; sorted, so that it is the same after each start."""
        tools = sorted((tool.definition for tool in self._tools.values()), key=lambda tool: tool.name)
        return ModuleManifest(
            module_name=self.name,
            description=self.description,
            tools=tools,
            retries_undeclared=self.retries_undeclared
            or None,  # unsaid where it is not so: older fleets do not know it
        )

    @property
    def key(self) -> str:
        """The key that verifies tokens; empty for none."""
        return os.environ.get(KEY_VARIABLE, "") if self._key is None else self._key

    @property
    def app(self) -> "Starlette":
        """The ASGI app with the routes of the module contract, made at the first use.

        Raises:
            ImportError: A package is missing; the message says how to install it.
            RuntimeError: The module has a key, and PyJWT is not installed.
        """
        with _naming_what_to_install("app", "toolfleet-sdk"):
            return super().app

    def client(self, *, user_id: str | None = None, permission: Level = "user") -> "ModuleClient":
        """Return a client for tests, which calls the module without sockets.

        ::

            async with module.client() as client:
                result = await client.call("count", day=1)

        The app's startup and shutdown run around it.

        Args:
            user_id: The user of calls that name none.
            permission: The permission of calls that name none.

        Returns:
            The client; enter it before use.

        Raises:
            ImportError: httpx is not installed; the message says how to install it.
        """
        with _naming_what_to_install("client", "toolfleet-sdk[client]"):
            from toolfleet_modules.sdk.client import ModuleClient  # only tests need httpx
        return ModuleClient(self, user_id=user_id, permission=permission)


@contextmanager
def _naming_what_to_install(part: str, distribution: str) -> Generator[None]:
    try:
        yield
    except ImportError as exc:
        if exc.name and exc.name.partition(".")[0] != "toolfleet_modules":
            message = f"A module's {part} needs {exc.name!r}: pip install '{distribution}'."
            raise ImportError(message, name=exc.name) from exc
        raise


class FunctionFollower:
    """A follower that calls `function(handle, cancel=…)`, async or plain, for a `StatusAnswer`. A plain one runs in a thread.

    A function that asks its caller also has a parameter `inputs`: the latest answers, or `None`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} is no function.")
        self._function = function
        self._is_plain = not inspect.iscoroutinefunction(function)
        self._takes_inputs = "inputs" in inspect.signature(function).parameters

    async def status(
        self, call_id: str, handle: str, *, cancel: bool, inputs: CallInputs | None = None
    ) -> StatusAnswer:
        """Implements `Follower`.

        Raises `TypeError` for an invalid answer, and for a question without a way to take its answer.
        """
        del call_id  # an author's handle says it all
        more = {"inputs": inputs} if self._takes_inputs else {}
        if self._is_plain:
            import asyncio  # a manifest needs none

            answer = await asyncio.to_thread(self._function, handle, cancel=cancel, **more)
        else:
            answer = self._function(handle, cancel=cancel, **more)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, StatusAnswer):
            raise TypeError(f"status returned {type(answer).__name__}, and no StatusAnswer.")
        if answer.state == "input_required" and not self._takes_inputs:
            raise TypeError("status asks, and has no parameter inputs for the answer.")
        return answer
