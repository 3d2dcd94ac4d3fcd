"""Says where a call is that a module has accepted, and defines who knows: a follower of work that goes on by itself."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import EffectState

RESULT_BYTES = 4 * 2**20
"""How large a result may be, unless its module says otherwise."""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """The state of an accepted call.

    Made by `running`, `done`, `failed`, `ended`, `asks`, `asking`, `unknown` or `none`.
    """

    state: Literal["running", "done", "input_required", "unknown", "none"]
    """At work; ended, with a `reply`; waiting for an answer; nobody knows; or surely never done, and it never will be."""
    reply: Reply | None = None
    """What it came to, of one that is `done`; what it asks, of one that waits."""
    progress: float | None = None
    """How much is done, from 0 to 1, of one that is `running`."""
    message: str = ""
    """What is going on."""
    poll_after_seconds: float | None = None
    """When the fleet is to ask again; `None`: when it likes."""

    @classmethod
    def running(
        cls, progress: float | None = None, message: str = "", *, poll_after_seconds: float | None = None
    ) -> Self:
        """Return that it is still running."""
        return cls("running", progress=progress, message=message, poll_after_seconds=poll_after_seconds)

    @classmethod
    def done(cls, result: Any, *, most_bytes: int = RESULT_BYTES) -> Self:
        """Return that it has succeeded, with `result` as the tool's return value."""
        return cls("done", Reply.success(_THE_TOOL, result, most_bytes=most_bytes))

    @classmethod
    def failed(cls, error: str, *, effect_state: Literal["none", "done", "unknown"] = "unknown") -> Self:
        """Return that it has failed.

        `error` is for the model; `effect_state` says whether its effect has happened all the same.
        """
        return cls("done", Reply.failure(_THE_TOOL, error, effect_state=effect_state))

    @classmethod
    def ended(cls, reply: Reply) -> Self:
        """Return that it has ended with this reply."""
        return cls("done", reply)

    @classmethod
    def asks(cls, requests: Mapping[str, Any], state: str = "", *, effect_state: EffectState = "unknown") -> Self:
        """Return that it continues once these questions are answered: requests by keys, each `{"method": …, "params": {…}}`, and a state that comes back with the answers.

        Raises `ValueError` for invalid requests, and for too many.
        """
        return cls.asking(Reply.question(_THE_TOOL, requests, state, effect_state=effect_state))

    @classmethod
    def asking(cls, reply: Reply) -> Self:
        """Return that it continues once the question of this reply is answered."""
        return cls("input_required", reply)

    @classmethod
    def unknown(cls) -> Self:
        """Return that its outcome is unknown."""
        return cls("unknown")

    @classmethod
    def none(cls) -> Self:
        """Return that it was never done, and never will be."""
        return cls("none")


Follower: TypeAlias = Callable[..., Awaitable[StatusAnswer]]
"""Returns the state of work that a module has accepted: `follower(call_id, handle, *, cancel, inputs=None)`.

The call `call_id` was accepted under `handle`; `cancel`: it is cancelled, so end it if you can. `inputs`: its latest answers
(`CallInputs`), from then on with each question. It is asked repeatedly, also after a restart, and must answer within some
seconds.
"""

_THE_TOOL = "The tool"  # the one that was called takes its place
