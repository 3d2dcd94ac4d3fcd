"""Makes a module's app of its parts: an author's module has them, and a host of tools that others run."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from toolfleet_modules.requests.status import Follower
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.once.memory import MemoryReplies
from toolfleet_registry.once.port import OnceStore

if TYPE_CHECKING:  # a manifest needs no starlette, and runs nothing
    from starlette.applications import Starlette

    from toolfleet_modules.once.served_tool import ServedTool

Hook: TypeAlias = Callable[[], Any]
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


class ServedModule:
    """A module with its app. Subclasses have `tools`, a `manifest` and a `key`.

    `replies` is the memory of what became of calls, which the app closes. `limits` are the arguments of `execute.Limits`.
    No caller waits longer than `longest_call_seconds` for one call, retries included.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str,
        replies: OnceStore | None,
        longest_call_seconds: float,
        limits: Mapping[str, Any],
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
            from toolfleet_modules.sdk.app import app_of  # noqa: PLC0415 - a manifest needs no starlette

            self._app = app_of(self)
        return self._app
