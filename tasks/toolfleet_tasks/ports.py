"""What a worker plugs into the app: what runs calls, and what keeps jobs going."""

from typing import Protocol

from toolfleet_registry.contracts import PublishedCall, Terms
from toolfleet_registry.outcomes import Attempt


class Runner(Protocol):
    """Runs one attempt of a call. Lives in the worker process; tasks know it by this shape only."""

    async def run(self, call: PublishedCall, *, seconds: float) -> Attempt:
        """Run `call` within `seconds`.

        Raises `TimeoutError` when the time is over after the request was sent, and lets `CancelledError` pass;
        everything else that can happen is an `Attempt`.
        """
        ...

    async def terms(self, call: PublishedCall) -> Terms | None:
        """Under which terms the call's tool may be called, as the worker itself knows it; `None` if it is not limited.

        Returns soon, and raises `CancelledError` only. A tool that nothing is known of is not limited here.
        """
        ...

    async def reconcile(self, call: PublishedCall, *, seconds: float) -> Attempt | None:
        """What `call`, begun before, came to, as its module remembers it; `None` if it does not say so in time.

        Nothing is executed. Takes `seconds` at most; raises `CancelledError` only.
        """
        ...


class JobKeeper(Protocol):
    """Keeps jobs going. Raises `CancelledError` only; each method returns within about `seconds`."""

    async def resume(self, *, seconds: float) -> None:
        """Do what is due of all jobs, or a part of it, and deliver news of their ends."""
        ...

    async def evaluate(self, job_id: str, *, seconds: float) -> None:
        """Look at a job whose call has ended: do what follows."""
        ...
