"""Defines what a tool may raise that means something to its caller. Anything else is a bug, and is reported as one."""

from collections.abc import Mapping
from typing import Any

from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.attempts import check_acceptance
from toolfleet_registry.contracts.inputs import check_requests


class ToolError(Exception):
    """A tool cannot do what was asked. The message is for the model: it says what to do instead.

    Args:
        message: The sentence for the model.
        effect_state: Whether the effect has happened nevertheless: `none` (certainly not; the call can be repeated, and a
            repeat under the same call id runs again), `done`, or `unknown`. None: unknown.
        retryable: Whether a repeat can help and does no harm, no matter what has happened. The fleet then tries once more, and
            the tool runs again under the same call id. It is ignored if a tool declares that it can run only once.

    Raises:
        ValueError: The effect state is invalid.

    """

    def __init__(self, message: str, *, effect_state: EffectState | None = None, retryable: bool = False) -> None:
        if effect_state not in {None, "none", "done", "unknown"}:
            raise ValueError(f"effect_state must be 'none', 'done' or 'unknown', not {effect_state!r}")
        self.effect_state: EffectState | None = effect_state
        self.retryable = retryable
        super().__init__(message)


class ModuleBusy(Exception):
    """There is no room for this call now, and nothing was started. The fleet tries again later.

    Never raise it after something has been done: the call is run again, regardless of its effect.

    Args:
        retry_after_seconds: When the fleet tries again, 0 to 86,400.
        message: The reason, for the caller of a call that waits in vain.

    Raises:
        ValueError: The time is invalid.

    """

    def __init__(self, retry_after_seconds: float = 1, message: str = "") -> None:
        if not 0 <= retry_after_seconds <= _LONGEST_SECONDS:
            raise ValueError(f"retry_after_seconds must be 0 to {_LONGEST_SECONDS}, not {retry_after_seconds!r}")
        self.retry_after_seconds = retry_after_seconds
        self.message = message
        super().__init__(message or f"Busy. Come back in {retry_after_seconds:g} s.")


class Accepted(Exception):
    """A tool has started the work, which continues by itself. Raise it, or return it.

    The call takes no slot in the fleet meanwhile; the fleet asks the module's `status` for the handle.

    Args:
        handle: The name of the work, 1 to 512 printable characters.
        poll_after_seconds: When the fleet asks for the first time. None: the fleet decides.

    Raises:
        ValueError: The handle or the time is invalid.

    """

    def __init__(self, handle: str, *, poll_after_seconds: float | None = None) -> None:
        check_acceptance(handle, poll_after_seconds)
        self.handle, self.poll_after_seconds = handle, poll_after_seconds
        super().__init__(f"It goes on as {handle!r}.")


class InputRequired(Exception):
    """A tool asks the caller before it continues. Raise it, or return it.

    The tool is called again with the answers and the state in `context.inputs`, perhaps in another process.

    Args:
        requests: The questions by keys, each `{"method": …, "params": {…}}` as in MCP.
        state: A text for the tool itself. It stays in the fleet: the caller never sees it.
        effect_state: `none` if nothing was done yet.

    Raises:
        ValueError: The requests are invalid, or too many.

    """

    def __init__(self, requests: Mapping[str, Any], state: str = "", *, effect_state: EffectState = "unknown") -> None:
        check_requests(requests, state)
        if effect_state not in {"none", "done", "unknown"}:
            raise ValueError(f"effect_state must be 'none', 'done' or 'unknown', not {effect_state!r}")
        self.requests, self.state = requests, state
        self.effect_state: EffectState = effect_state
        super().__init__(f"It asks for {', '.join(map(repr, requests))}.")


_LONGEST_SECONDS = 86_400  # more is no coming back
