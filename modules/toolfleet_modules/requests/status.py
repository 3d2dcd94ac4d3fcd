"""Says where a call is that a module has accepted, and defines who knows: a follower of work that goes on by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.inputs import CallInputs

RESULT_BYTES = 4 * 2**20
"""How large a result may be, unless its module says otherwise."""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """Where an accepted call is. Made by `running`, `done`, `failed`, `ended`, `asks`, `asking`, `unknown` or `none`."""

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
        """It goes on."""
        return cls("running", progress=progress, message=message, poll_after_seconds=poll_after_seconds)

    @classmethod
    def done(cls, result: Any, *, most_bytes: int = RESULT_BYTES) -> Self:
        """It has worked, and `result` is what the tool would have returned."""
        return cls("done", Reply.success(_THE_TOOL, result, most_bytes=most_bytes))

    @classmethod
    def failed(cls, error: str, *, effect_state: Literal["none", "done", "unknown"] = "unknown") -> Self:
        """It has failed. `error` is for the model; `effect_state` says whether its effect has happened all the same."""
        return cls("done", Reply.failure(_THE_TOOL, error, effect_state=effect_state))

    @classmethod
    def ended(cls, reply: Reply) -> Self:
        """It has ended with this reply."""
        return cls("done", reply)

    @classmethod
    def asks(cls, requests: Mapping[str, Any], state: str = "", *, effect_state: EffectState = "unknown") -> Self:
        """It goes on once that is answered: requests by keys, each `{"method": …, "params": {…}}`, and a state that comes back beside them.

        Raises `ValueError` for requests that are none, and for too much of them.
        """
        return cls.asking(Reply.question(_THE_TOOL, requests, state, effect_state=effect_state))

    @classmethod
    def asking(cls, reply: Reply) -> Self:
        """It goes on once the question of this reply is answered."""
        return cls("input_required", reply)

    @classmethod
    def unknown(cls) -> Self:
        """Nobody knows what became of it."""
        return cls("unknown")

    @classmethod
    def none(cls) -> Self:
        """It was never done, and never will be."""
        return cls("none")


class Follower(Protocol):
    """Knows the work that a module has accepted."""

    async def status(
        self, call_id: str, handle: str, *, cancel: bool, inputs: CallInputs | None = None
    ) -> StatusAnswer:
        """Say where the call `call_id` is that was accepted under `handle`; `cancel`: nobody wants it any more, so end it if you can.

        `inputs`: what it was answered last, from then on with each question. Is asked again and again, also after a restart, and is
        answered for within some seconds.
        """
        ...


_THE_TOOL = "The tool"  # the one that was called takes its place
