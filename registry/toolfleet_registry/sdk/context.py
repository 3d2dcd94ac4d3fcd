"""What a tool may know of the call that it runs, and what it may say while it does."""

import time
from collections.abc import Awaitable, Generator
from dataclasses import dataclass, field

from toolfleet_registry.contracts import Conversation
from toolfleet_registry.progress import Sink, progress_of


@dataclass(slots=True, eq=False)
class Context:
    """One call, as its tool sees it. A parameter with this annotation gets it; models are not offered that parameter.

    `user_id` is whom the call is for, and `permission` (guest, user, admin or owner) what the fleet's token says that they
    may; it is `None` where no token is checked: then the user id is no more than a claim. `call_id` is the same for a
    repeat of the call. `conversation` has what the agent's core tells this module of where the call comes from: platform and
    channel, where the fleet's `TOOLFLEET_CONTEXT_MODULES` names the module, else nothing.
    """

    tool_name: str
    call_id: str | None = None
    user_id: str | None = None
    permission: str | None = None
    conversation: Conversation = field(default_factory=Conversation)
    _ends_at: float | None = None  # on the monotonic clock
    _cancelled: bool = False
    _report: Sink | None = None

    @property
    def seconds_left(self) -> float | None:
        """Until nobody waits for the result any more, 0 when that is so; `None` if the caller has set no end."""
        return None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    @property
    def deadline(self) -> float | None:
        """The same as seconds since the epoch."""
        left = self.seconds_left
        return None if left is None else time.time() + left

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits any more. An async tool is cancelled then; a plain one, in its thread, should look."""
        return self._cancelled or self.seconds_left == 0

    def progress(self, fraction: float | None = None, message: str = "") -> Awaitable[None]:
        """Say how far the tool is: `await context.progress(0.4, "half of the pages")`; `None` if nobody can know.

        Costs next to nothing if nobody listens, and only the latest of many in a short time is sent. May be called from any
        thread, and need not be awaited: a plain function calls it and goes on.
        """
        if self._report is not None:
            self._report(progress_of(fraction, message))
        return _Said()


class _Said:
    """Nothing to wait for; but a loop of an async tool that only reports lets others have their turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield
