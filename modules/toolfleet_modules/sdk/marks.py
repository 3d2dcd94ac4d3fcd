"""Marks functions as tools where no module is at hand: in a file of a folder that a host serves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Unpack, overload

from toolfleet_modules.sdk.offer import Facts

F = TypeVar("F", bound=Callable[..., Any])
RunsIn = Literal["thread", "process"]

_ATTRIBUTE = "__toolfleet_tool__"


@dataclass(frozen=True, slots=True)
class ToolMark:
    """The declaration of a tool function: its facts, whether it computes, so that it runs in a process of its own, and the secrets it gets."""

    facts: Facts = field(default_factory=Facts)
    runs_in: RunsIn = "thread"
    secrets: tuple[str, ...] = ()


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(*, runs_in: RunsIn = "thread", secrets: Sequence[str] = (), **facts: Unpack[Facts]) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    runs_in: RunsIn = "thread",
    secrets: Sequence[str] = (),
    **facts: Unpack[Facts],
) -> F | Callable[[F], F]:
    """Mark a function of a tool folder as a tool, as it is or with more `facts` about it; the function stays what it was.

    ::

        @tool(effect="read")
        def count(day: int) -> dict[str, int]:
            \"\"\"Count the owls of a day.\"\"\"

    The same rules hold as for `Module.tool`. An async function runs in the loop of the folder's process, a plain one in a thread
    of it; with `runs_in="process"` each call has a process for itself, which is ended when its time is over: for what computes.
    `secrets` names those of its host whose values a call finds in `context.secrets`.

    Raises `TypeError` or `ValueError` for what cannot be a tool.
    """
    if runs_in not in {"thread", "process"}:
        raise ValueError(f"runs_in is 'thread' or 'process', not {runs_in!r}.")
    if isinstance(secrets, str):  # an easy mistake
        raise TypeError(f"secrets takes several names, such as [{secrets!r}].")
    mark = ToolMark(facts, runs_in, tuple(map(str, secrets)))
    return _marked(function, mark) if function is not None else lambda each: _marked(each, mark)


def mark_of(thing: object) -> ToolMark | None:
    """Return what `tool` has said of it; `None` if it is no tool."""
    mark = getattr(thing, "__dict__", {}).get(_ATTRIBUTE)
    return mark if isinstance(mark, ToolMark) else None


def _marked(function: F, mark: ToolMark) -> F:
    if not callable(function):
        raise TypeError(f"{function!r} is no function.")
    try:
        setattr(function, _ATTRIBUTE, mark)
    except AttributeError:
        raise TypeError(f"{function!r} cannot be marked as a tool; write a function that calls it.") from None
    return function
