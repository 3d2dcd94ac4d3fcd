"""Defines what a worker plugs into the app to run calls."""

from typing import Protocol

from toolfleet_registry.contracts import PublishedCall, RetryTerms, Terms
from toolfleet_registry.contracts.attempts import Attempt, Health, Lease, Standing


class Runner(Protocol):
    """Runs one attempt of a call. Lives in the worker process; tasks know it by this shape only."""

    async def run(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt:
        """Run `call` within `seconds`; begin it on its `lease`, or not at all.

        Raises `TimeoutError` when the time is over after the request was sent, and lets `CancelledError` pass;
        everything else that can happen is an `Attempt`.
        """
        ...

    async def terms(self, call: PublishedCall) -> Terms | None:
        """Return the terms of the call's tool, as the worker itself knows them; `None` if it is not limited.

        Returns soon. Raises `ToolNotKnown` for a tool of which the worker knows nothing yet, so that the call must
        wait, and `CancelledError`.
        """
        ...

    def retry_terms(self, call: PublishedCall) -> RetryTerms | None:
        """Return the call's retry terms: the stricter of those of its message and of its agent's profile here.

        `None`: the default.
        """
        ...

    def retries_undeclared(self, tool_name: str) -> bool:
        """Return whether the tool's module declares that its undeclared tools are repeated after a failure."""
        ...

    def replica_for(self, call: PublishedCall) -> str:
        """Return which process of its module the call would go to, as its lease is to note it; "" for a module with one address."""
        ...

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt | None:
        """Return the outcome of `call`, started before, from its module's memory; `None` if it does not say so in time.

        Nothing is executed, and without a live `lease` nothing is asked. Takes `seconds` at most; raises
        `CancelledError` only.
        """
        ...

    async def status(
        self, call: PublishedCall, handle: str, *, seconds: float, lease: Lease, cancel: bool = False
    ) -> Standing:
        """Return the state of a `call` that its module has accepted under `handle`.

        `cancel`: the module is told that it is cancelled.

        Without a live `lease` nothing is asked. Takes `seconds` at most; raises `CancelledError` only.
        """
        ...

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Check whether the module is there, over a connection of its own and without a call; within `seconds`.

        Raises `CancelledError` only.
        """
        ...
