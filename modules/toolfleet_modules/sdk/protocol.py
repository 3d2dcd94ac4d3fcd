"""Says what a module's app and its test client need of a module: so neither imports it, and it makes both."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from toolfleet_modules.requests.status import Follower
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.once.port import OnceStore

if TYPE_CHECKING:  # a manifest needs no starlette, and runs nothing
    from starlette.applications import Starlette

    from toolfleet_modules.sdk.served_tool import ServedTool

Hook: TypeAlias = Callable[[], Any]
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


class ModuleIdentity(Protocol):
    """A module's name, and the keys that verify its callers' tokens."""

    @property
    def name(self) -> str:
        """The module's name, the first part of its tools' names."""
        ...

    @property
    def key(self) -> str:
        """The keys, as `authentication.keys_in` reads them; empty where no token is checked."""
        ...


class AppParts(ModuleIdentity, Protocol):
    """Holds what an ASGI app is made of."""

    @property
    def manifest(self) -> ModuleManifest:
        """The answer to `GET /manifest`."""
        ...

    @property
    def tools(self) -> "Mapping[str, ServedTool]":
        """The tools by their full names: another mapping whenever they change."""
        ...

    @property
    def replica_id(self) -> str:
        """The id by which the fleet knows this process among those that serve the module; "" if by none."""
        ...

    @property
    def replies(self) -> OnceStore:
        """The memory of what became of calls; the app closes it."""
        ...

    @property
    def limits(self) -> Mapping[str, Any]:
        """The arguments of `execute.Limits`."""
        ...

    @property
    def longest_call_seconds(self) -> float:
        """The seconds that a caller may wait for one call, retries included."""
        ...

    @property
    def follower(self) -> Follower | None:
        """The follower of calls that the module has accepted; `None` if it accepts none."""
        ...

    @property
    def startup(self) -> Sequence[Hook]:
        """The hooks to run before the first call."""
        ...

    @property
    def shutdown(self) -> Sequence[Hook]:
        """The hooks to run after the last call."""
        ...

    @property
    def lifespans(self) -> Sequence[Lifespan]:
        """The context managers to enter before the first call, and to leave after the last."""
        ...


class ModuleWithApp(ModuleIdentity, Protocol):
    """Has its app."""

    @property
    def app(self) -> "Starlette":
        """The ASGI app."""
        ...
