"""What a core remembers of wake-ups, so that it acts on each once: what such a memory can do."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

REMEMBERED_SECONDS = 30 * 86_400
"""Longer than any fleet tries a wake-up; and than it makes sense to replay a dead one."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Whose a wake-up is: `ours`; `done`; or, for at most so many seconds more, somebody else's who is `busy` with it."""

    state: Literal["ours", "done", "busy"]
    rest_seconds: float = 0


class Seen(Protocol):
    """A memory that several processes of a core may share. Every method raises `FleetUnavailable` when it does not answer in time.

    A `token` is one delivery's: whoever has lost a wake-up to another can neither mark nor release it.
    """

    async def claim(self, wake_id: str, token: str, *, seconds: float) -> Standing:
        """Ask for a wake-up, to be at it for so many seconds. Asked again with the same token, it is `ours` again."""
        ...

    async def renew(self, wake_id: str, token: str, *, seconds: float) -> bool:
        """So many seconds more from now on. `False`: it is not ours any more."""
        ...

    async def done(self, wake_id: str, token: str) -> bool:
        """Remember that it was acted on, also when nothing is known of it any more. `False`: another has it."""
        ...

    async def is_done(self, wake_id: str) -> bool:
        """Whether it was acted on."""
        ...

    async def release(self, wake_id: str, token: str) -> None:
        """Forget it, if it is ours and not done: the next delivery may have it."""
        ...

    def done_in(self, transaction: object, wake_id: str, token: str) -> object:
        """Have the mark made by the caller's own transaction, or not at all. Raises `WakeLost` where it is not ours any more.

        Raises `TypeError` for a transaction of another kind.
        """
        ...


def lazy_attribute(name: str) -> Any:
    """`SQLSeen`, by name: a module's `__getattr__`, so that only who wants it needs SQLAlchemy."""
    if name != "SQLSeen":
        raise AttributeError(f"there is no {name!r} here")
    try:
        return import_module("toolfleet_tasks.webhooks.dedup_sql").SQLSeen
    except ImportError as exc:
        raise ImportError(f"Wake-ups seen in an SQL database need {exc.name!r}: install 'toolfleet[sql]'.") from exc
