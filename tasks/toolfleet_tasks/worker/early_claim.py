"""Takes over the claim that was made as a call's message was fetched, or gives it back where the call must be judged first."""

from types import TracebackType
from typing import Any, Self

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.messages.envelope import begins_when_taken
from toolfleet_tasks.transport.fetched_claims import FetchedClaim, FetchedClaims
from toolfleet_tasks.worker.health_checks import checks_of
from toolfleet_tasks.worker.running_task import RunningTask


class EarlyClaim:
    """The one of a task's message, if there is one. Given back at the end of its block, unless the call has begun under it."""

    __slots__ = ("_claims", "_fetched", "_queue")

    def __init__(self, task: RunningTask) -> None:
        self._fetched: FetchedClaim | None = None
        here, properties = worker_runtime.current(), getattr(task.request, "properties", None)
        if here is not None and isinstance(properties, dict):
            self._claims: FetchedClaims = here.part(FetchedClaims)
            self._fetched = self._claims.take(str(properties.get("delivery_tag")))
            self._queue = _queue_of(task.request)

    def give_back(self) -> None:
        """Have the call as if its message had only been fetched."""
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            self._claims.give_back(fetched, self._queue)

    def keep_if_plain(self, task: RunningTask, ledger: Ledger, call: PublishedCall, *, deaths: int | None) -> None:
        """Give it back where anything stands against beginning the call at once, or its message has said of it what is not so."""
        fetched = self._fetched
        if fetched is None:
            return
        is_plain = fetched.call_id == call.call_id and begins_when_taken(call) and not deaths
        is_due = call.deadline_at > fleet_clock.now()
        if not (is_plain and is_due and checks_of(task.app, ledger).may_begin(call)):
            self.give_back()

    def begin(self, ledger: Ledger, call: PublishedCall) -> Claim | None:
        """Return the ledger's claim, from now on the caller's; `None` if there is none."""
        fetched, self._fetched = self._fetched, None
        return None if fetched is None else ledger.claimed(call, fetched.token, fetched.sent_at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.give_back()


def _queue_of(request: Any) -> str:
    return str((request.delivery_info or {}).get("routing_key"))
