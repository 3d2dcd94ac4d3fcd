"""Loads the classes of operators that stand around calls and that profiles name by import path, each made once.

Only classes below a trusted namespace are imported: a profile in the registry must not run arbitrary code from the
path.
"""

import importlib
import inspect
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol, TypeAlias

from toolfleet_registry.config.agent_profile import AgentProfile, OwnMiddlewareSpec
from toolfleet_registry.config.setting_sources import find_own_programs, setting_place
from toolfleet_registry.contracts import Caller, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings

ProceedWithCall: TypeAlias = Callable[[PublishedCall], Awaitable[Attempt]]
"""What comes next for a call in a worker: it may be called once."""

_LONGEST_REASON = 300  # characters of what an import raises


class CallMiddleware(Protocol):
    """An operator's class that runs in the process that publishes a call (`runs_in = "agent"`).

    Has two seconds; fails closed.

    It is made once with the parameters of its entry, by keyword.
    """

    async def __call__(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """Return the call as it is to be judged, of which only the arguments may be others; or a refusal: a result without success."""
        ...


class AttemptMiddleware(Protocol):
    """An operator's class around each attempt of a call in a worker.

    An exception ends the attempt as `internal`, with an unknown effect.

    It is made once with the parameters of its entry, by keyword.
    """

    async def __call__(self, call: PublishedCall, proceed: ProceedWithCall) -> Attempt:
        """Run the attempt and return its outcome.

        Calls `proceed` at most once, with the call, of which only the arguments may differ.
        """
        ...


class OwnClasses:
    """The operators' classes that run in this process. Thread-safe."""

    def __init__(self, settings: Settings, *, runs_in: Literal["agent", "worker"]) -> None:
        self._trusted = settings.trusted_middleware_namespaces
        self._runs_in = runs_in
        self._made = dict[str, Any]()
        self._lock = Lock()

    def runs_here(self, spec: OwnMiddlewareSpec) -> bool:
        """Return whether the class runs in this kind of process."""
        return spec.runs_in == self._runs_in

    def fault(self, profile: AgentProfile) -> str | None:
        """Return why a profile cannot be applied here, or `None` if it can and all its classes are made.

        Imports them.
        """
        for spec in profile.middleware:
            if isinstance(spec, OwnMiddlewareSpec) and self.runs_here(spec):
                try:
                    self.made(spec)
                except ValueError as exc:
                    return str(exc)
        return None

    def check(self, settings: Settings) -> None:
        """Make all that the settings name. Raises `SettingsError` with the place of the first that cannot be had."""
        for agent, profile in settings.agents.items():
            for number, spec in enumerate(profile.middleware):
                if isinstance(spec, OwnMiddlewareSpec) and self.runs_here(spec):
                    try:
                        self.made(spec)
                    except ValueError as exc:
                        place = setting_place(("agents", agent, "middleware", number), start=Path.cwd())
                        raise SettingsError(f"{place}: agents, at {agent}.middleware.{number}: {exc}.") from exc

    def made(self, spec: OwnMiddlewareSpec) -> Any:
        """Return the instance of an entry, made when it is first asked for. Raises `ValueError` with a clause for what cannot be had."""
        key = json.dumps([spec.name, spec.parameters], sort_keys=True, default=str)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(spec)
            return self._made[key]

    def _make(self, spec: OwnMiddlewareSpec) -> Any:
        path, _, name = spec.name.partition(":")
        if not any(path == trusted or path.startswith(f"{trusted}.") for trusted in self._trusted):
            raise ValueError(f"{spec.name!r} is in none of the namespaces in trusted_middleware_namespaces")
        find_own_programs()
        try:
            found = getattr(importlib.import_module(path), name)
        except (Exception, SystemExit) as exc:  # an imported program may raise anything
            raise ValueError(f"{spec.name!r} cannot be imported: {_reason(exc)}") from exc
        if not isinstance(found, type):
            raise ValueError(f"{spec.name!r} is no class")
        try:
            made = found(**spec.parameters)
        except (Exception, SystemExit) as exc:
            raise ValueError(f"{spec.name!r} refuses its parameters: {_reason(exc)}") from exc
        if not inspect.iscoroutinefunction(getattr(made, "__call__", None)):  # noqa: B004 - whether it is asynchronous
            raise ValueError(f"{spec.name!r} has no method `async def __call__`")
        return made


def _reason(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"[:_LONGEST_REASON]
