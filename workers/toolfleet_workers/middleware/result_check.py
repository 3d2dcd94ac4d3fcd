"""Validates a module's result by its tool's output schema, before it is passed on."""

from dataclasses import dataclass, replace

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome, checked_part
from toolfleet_registry.contracts.calls import note
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.runner import Proceed, ToolLookup

log = get_logger(__name__)


@dataclass
class ResultCheck:
    """Turns a result that does not match the tool's `output_schema` into `invalid_response`; its effect has happened.

    Fails open: for a tool that this worker does not know yet, as `result_fault` does, and if the module says that the
    schema does not cover this result, which the result says then. The text repeats nothing of the result. Only a call
    that is harmless to repeat is tried once more, as after any useless answer.
    """

    tools: ToolLookup
    invalid: int = 0

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, and look at what came of it."""
        attempt = await proceed(call)
        if not attempt.result.success:
            return attempt
        tool = self.tools.definition(call.tool_name)
        if tool is None or tool.output_schema is None:
            return attempt
        if attempt.unchecked is not None:
            return _unchecked(attempt)
        from toolfleet_registry.schemas.validation import result_fault  # noqa: PLC0415 - not every worker has such a tool

        fault = result_fault(tool, checked_part(attempt.result.result))
        if fault is None:
            note("result_check", "passed")
            return attempt
        note("result_check", "failed")
        self.invalid += 1
        log.warning("tool_result_invalid", call_id=call.call_id, tool=call.tool_name, fault=fault)
        text = f"Tool execution error: the module's result is not what its schema says: {fault}"
        result = ToolResult.failed(call.tool_name, "invalid_response", text, effect_state="done")
        return Attempt(Outcome.UNKNOWN, result)


def _unchecked(attempt: Attempt) -> Attempt:
    """Return the attempt, whose result says that it was not checked, and why."""
    note("result_check", "not_checked")
    words = f"The result was not checked against the tool's schema: {attempt.unchecked}."
    hint = f"{attempt.result.hint}\n{words}" if attempt.result.hint else words
    return replace(attempt, result=attempt.result.model_copy(update={"hint": hint}))
