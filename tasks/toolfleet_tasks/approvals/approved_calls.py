"""Gets approved calls into their queues, and ends those that nobody has approved."""

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.errors import PublishUnconfirmed
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tracing.trace_context import TraceContext
from toolfleet_tasks.admission.refusal import Refusal
from toolfleet_tasks.dispatch.dispatcher import Dispatcher
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.fleet_results import CallEnding

_MOST_WAITING = 1_000_000  # calls in a module's queue: people have waited for this one

log = get_logger(__name__)


class ApprovedCalls:
    """Those of one session."""

    def __init__(self, ledger: Ledger, dispatcher: Dispatcher) -> None:
        self._ledger, self._dispatcher = ledger, dispatcher

    async def publish(self, call: PublishedCall, origin: TraceContext | None = None) -> None:
        """Get an approved call into its queue, where it counts in its limits. One that has reached one ends so.

        What may pass, such as a full queue or a broker that is away, leaves it as it is: it is tried again until its deadline.
        `origin`: where it was made in a trace, which goes on from there.
        """
        try:
            answer = await self._dispatcher.detach(call, most_waiting=_MOST_WAITING, again=True, origin=origin)
        except PublishUnconfirmed as exc:  # it was begun, too
            log.debug("approved_call_not_confirmed", call_id=call.call_id, error=str(exc))
            return
        if isinstance(answer, Refusal) or answer is None:
            return
        log.warning("approved_call_not_published", call_id=call.call_id, tool=call.tool_name, error=answer.error)
        if answer.error_code not in _PASSING:
            await self.end(call, answer)

    async def end(self, call: PublishedCall, result: ToolResult) -> None:
        """End a call that was never begun. One that has ended, or was begun after all, stays as it is."""
        unknown = fleet_results.outcome_unknown(call.tool_name, "the call had begun before it was ended.")
        await self._ledger.end(call, CallEnding(result, result, unknown), data_id=ANY_DATA)


_PASSING = frozenset({"busy", "fleet_unavailable", "internal"})
