"""Defines the port through which everything gets into a queue: calls, the same calls again, and the fleet's own tasks.

Behind it are our own connection to Redis and kombu, and a step of admission before either where the broker cannot do it.
Not behind it are only Celery's beat, and the transport, which is what writes for kombu.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from toolfleet_registry.contracts import PublishedCall
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.messages.envelope import Label, message, with_deaths
from toolfleet_tasks.queues import CONTROL

REPUBLISH_SECONDS = 10.0
"""To get a call into its queue again; after that its first attempt's end is the call's."""
CONTROL_SECONDS = 5.0
"""To get a task of our own into its queue. Nothing depends on it: due work is looked for anyway."""


Outcome = Refusal | Exception | None
"""The outcome of a publish: `None` if the broker has the call, its refusal, or the error of `Publisher.publish`."""


Following = tuple["asyncio.Future[Any]", Callable[[Outcome], bool]]
"""The future of a call's end, at which `Publisher.publish` returns, so that its caller is woken once; and a function.

The function gets the outcome of the publish as soon as that is known, and returns whether the call may be in its queue:
only then does the publisher wait for the end.
"""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A call's message as a worker received it. The signature covers its `text`.

    `died`: the workers that have died with it, as our own transport knows. `headers`: additional headers of others, if
    Celery has published it.
    """

    text: str
    label: Label
    reply_to: str = ""
    died: tuple[str, ...] = ()
    headers: Mapping[str, Any] | None = None

    def message(self, *, origin: str, retries: int, eta: str | None = None) -> str:
        """Return the message that brings the call again, as it lies in Redis; not to be started before `eta`."""
        again = message(self.text, self.label, origin=origin, reply_to=self.reply_to, retries=retries, eta=eta)
        return with_deaths(again, self.died)


class Publisher(Protocol):
    """A publisher of calls. More than `most_in_flight` at once would only wait for each other."""

    most_in_flight: int

    @property
    def is_ready(self) -> bool:
        """Whether a call would leave at once, as far as is known."""
        ...

    async def ready(self) -> None:
        """Wait until it would. Has no deadline. Raises `NotPublished` when the fleet is left."""
        ...

    async def publish(
        self,
        call: PublishedCall,
        *,
        seconds: float,
        limit: int,
        needs_worker: bool = False,
        again: bool = False,
        follow: Following | None = None,
    ) -> Refusal | None:
        """Return when the broker has the call, or refuses it, as if `limit` messages wait in its queue (0: any number).

        `needs_worker`: it is also refused if no worker consumes its queue. `again`: the broker may have the call
        already, for an earlier attempt was not confirmed. Raises `NotPublished` (of this attempt) or
        `PublishUnconfirmed`, in `seconds` or at the call's deadline; if it is not ready, as soon as that is known.

        `follow`: a publisher that supports it returns at the call's end, if the call may be in its queue. Other publishers
        ignore it.
        """
        ...

    async def republish(self, delivered: Delivered, *, delay: float, retries: int) -> None:
        """Put a call into its queue again, not to be started before `delay` seconds. `retries` is what Flower shows.

        It was admitted before, and is not judged again. Raises `NotPublished` or `PublishUnconfirmed`, in
        `REPUBLISH_SECONDS`.
        """
        ...

    async def put(self, message: str, queue_name: str, *, seconds: float) -> object:
        """Put a call's message that was kept in Redis, as it lies in a queue there, into its queue.

        Raises `NotPublished` or `PublishUnconfirmed`, in `seconds` at the latest.
        """
        ...

    async def control(self, task: str, *args: str, queue: str = CONTROL, limit: int = 0) -> None:
        """Have one of our own tasks run soon, by a worker that consumes the queue, unless `limit` messages wait there.

        Raises `NotPublished` or `PublishUnconfirmed`, in `CONTROL_SECONDS`.
        """
        ...

    async def revoke(self, call_id: str) -> None:
        """Tell every worker to drop the call, or to interrupt it. Reaches only workers that are up; raises nothing."""
        ...

    def close(self) -> None:
        """Let go of what it has."""
        ...
