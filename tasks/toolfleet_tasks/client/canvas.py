"""Makes signatures for Celery's canvas, and reads their results (`fleet.canvas`)."""

from typing import TYPE_CHECKING, Any

from toolfleet_registry.contracts import Caller, Conversation, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.errors import FleetError
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import TraceContext
from toolfleet_tasks.client.session import Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.envelope import TASK, args_shown, seconds_kept
from toolfleet_tasks.queues import nets_around, queue_for
from toolfleet_tasks.results import stored
from toolfleet_tasks.results.verifier import Meta
from toolfleet_tasks.tracing import created, system_of

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult

    from toolfleet_tasks.app import FleetApp

_NO_DEADLINE_SECONDS = 3600.0  # of a link without a given one: others are before it


class CallRefused(FleetError):
    """A call may not be made; `result` says why, as it would have been the call's result."""

    def __init__(self, result: ToolResult) -> None:
        self.result = result
        super().__init__(result.error or "The call is refused.")


class CanvasApp:
    """The Celery app of a fleet's signatures, made with the first of them. Its connections are Celery's own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: FleetApp | None = None

    def get(self) -> "FleetApp":
        """Return the app, and make it if there is none."""
        if self._app is None:
            from toolfleet_tasks.app import make_app  # Celery, which most agents never load

            self._app = make_app(self._settings)
            self._app.conf.result_backend_thread_safe = True  # else each thread that publishes would listen by itself
        return self._app

    def close(self) -> None:
        """Close what Celery has opened, which otherwise uses Redis when Python ends. Results can still be asked for."""
        app, self._app = self._app, None
        if app is not None:
            consumer = app.backend.result_consumer
            consumer.stop()
            consumer.subscribed_to.clear()  # else every result of a group unsubscribes when it is dropped
            app.backend.client.connection_pool.disconnect()
            app.close()


class FleetCanvas:
    """Signatures of calls, for Celery's `group`, `chord` and `chain`.

    A signature is immutable: no other link's result becomes an argument. Each link is one call, and published twice it
    is run once. The guarantees of `ToolFleet.call` hold for each, also if a process stops meanwhile: ledger, permission, limits
    (taken when it starts) and retry. The number of calls under way is not bounded: a group of thousands is thousands of
    messages.

    A chain continues, and a chord's body is called, once the calls before have succeeded. If they fail, the next ones
    are not called: their results are Celery's `FAILURE`, and `result_of` says so. The worker that gets a link's message
    publishes the next ones, perhaps twice; each link runs once all the same. A chord counts each part of its header
    once as long as Redis keeps the count (`result_ttl_seconds`; five minutes after the body was called). A RabbitMQ
    that goes away just then may end a chord, or a chain, with `FAILURE`.
    """

    def __init__(self, sessions: Sessions, app: CanvasApp) -> None:
        self._sessions = sessions
        self._app = app

    async def signature(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        timeout: float | None = None,
        conversation: Conversation | None = None,
    ) -> "Signature":
        """Make a call a signature of Celery's canvas: judged now, sealed, and with id, queue, limits and deadline fixed.

        Args:
            call: The tool and its arguments, without an idempotency key: the signature's own id is fixed.
            caller: The user and the rights that the call is made with.
            timeout: Seconds from now in which it must end, at any place in a chain; by default an hour.
            conversation: As of `ToolFleet.call`.

        Returns:
            An immutable signature: no other link's result becomes an argument.

        Raises:
            CallRefused: The call may not be made.
            ValueError: The call has an idempotency key, or the timeout is not a positive number.
            FleetUnavailable: Redis does not answer on a loop's first use.

        """
        if call.idempotency_key:
            raise ValueError("A signature has no idempotency key: its own id is fixed, and it runs once.")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}.")
        session = await self._sessions.opened()
        seconds = _NO_DEADLINE_SECONDS if timeout is None else timeout
        prepared = await session.prepare(call, caller, conversation, seconds)
        if isinstance(prepared, ToolResult):
            raise CallRefused(prepared)
        system = system_of(session.settings.broker)
        trace = None if session.tracing is None else created(session.tracing, prepared, system)
        return _signed(self._app.get(), prepared, trace)

    async def result_of(
        self,
        link: "Signature | AsyncResult | str",
        *,
        timeout: float | None = None,
    ) -> ToolResult | None:
        """Wait for the result of a link.

        Celery's own `AsyncResult(id).get()` gives it as JSON text, waits by blocking, and raises `LinkFailed` for a
        link that was not called because one before it has failed.

        Args:
            link: The signature, Celery's result of it, or its id.
            timeout: Seconds to wait; by default without a limit.

        Returns:
            The result; `None` if the link has not ended in time.

        Raises:
            NotPublished: The fleet was left meanwhile.
            FleetUnavailable: Redis does not answer on a loop's first use.

        """
        call_id = link if isinstance(link, str) else str(link.id)
        options: dict[str, Any] = getattr(link, "options", None) or {}  # of a signature
        tool_name = str(options.get("shadow", ""))
        meta = await (await self._sessions.opened()).ends.of(call_id, seconds=timeout)
        return None if meta is None else _result_in(meta, tool_name)


class SyncFleetCanvas(SyncFace[FleetCanvas]):
    """`FleetCanvas` with plain methods."""

    signature = blocking(FleetCanvas.signature)
    result_of = blocking(FleetCanvas.result_of)


def _signed(app: "FleetApp", call: PublishedCall, trace: TraceContext | None) -> "Signature":
    traced: dict[str, Any] = {} if trace is None else {"headers": trace.headers}
    soft_limit, hard_limit = nets_around(call.limit_seconds)
    return app.signature(
        TASK,
        args=(app.seal.seal(call),),
        immutable=True,
        task_id=call.call_id,
        queue=queue_for(call),
        shadow=call.tool_name,
        soft_time_limit=soft_limit,
        time_limit=hard_limit,
        expiration=seconds_kept(call),
        argsrepr=args_shown(call.arguments),
        kwargsrepr="{}",
        **traced,
    )


def _result_in(meta: Meta, tool_name: str) -> ToolResult:
    if meta["status"] == "SUCCESS":
        return stored.result_in(str(meta.get("result")), tool_name)
    reason = meta.get("result")
    kind = str(reason.get("exc_type")) if isinstance(reason, dict) else ""
    if kind in {"LinkFailed", "ChordError"}:
        text = "Tool call was not made: a call before it in its chain or chord has not succeeded."
        return ToolResult.failed(tool_name, "cancelled", text, effect_state="none")
    if meta["status"] == "REVOKED":
        return fleet_results.cancelled(tool_name, effect_state="unknown")
    return fleet_results.outcome_unknown(tool_name, f"the worker failed ({kind}).")
