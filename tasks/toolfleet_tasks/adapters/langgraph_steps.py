"""Reads which step of a LangGraph graph asks for a call, and what it was interrupted with before."""

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.prebuilt.tool_node import ToolCallRequest

from toolfleet_tasks.adapters.deferrals import DeferredStep

_CHECKPOINTER = "__pregel_checkpointer"  # where the graph's configuration has it
_INTERRUPT = "__interrupt__"
_TOOL_CALL = "tool_call_id"


def origin_of(request: ToolCallRequest) -> str | None:
    """The thread, and the model's message that asks for the call: the same whenever and from wherever its step runs again.

    A graph without such a message in its state has the checkpoint in its place.
    """
    info, state = request.runtime.execution_info, request.state
    held: Any = state if isinstance(state, list) else _messages_of(state)
    asks = (each for each in reversed(held) if isinstance(each, AIMessage) and _has(each, request.tool_call["id"]))
    message_id = next((each.id for each in asks), None)
    thread_id, checkpoint_id = (None, None) if info is None else (info.thread_id, info.checkpoint_id)
    origin = message_id or checkpoint_id
    return None if origin is None else f"{thread_id}/{origin}"


def run_id_of(request: ToolCallRequest) -> str | None:
    """The run's id, where its caller has given it one."""
    info = request.runtime.execution_info
    return None if info is None else info.run_id


def interrupt_value(request: ToolCallRequest, known: Mapping[str, Any]) -> dict[str, Any]:
    """What the graph is interrupted with for this call, `known` being what is kept of it."""
    return {**known, _TOOL_CALL: request.tool_call["id"]}


async def interrupted_before(request: ToolCallRequest) -> DeferredStep | None:
    """The call for which this very step was interrupted last, by its checkpoint; `None` if it was not.

    A step that is begun anew from an earlier checkpoint is another step.
    """
    info, config = request.runtime.execution_info, request.runtime.config.get("configurable", {})
    checkpointer = config.get(_CHECKPOINTER)
    if info is None or info.thread_id is None or not isinstance(checkpointer, BaseCheckpointSaver):
        return None
    where = {"thread_id": info.thread_id, "checkpoint_ns": info.checkpoint_ns.rpartition("|")[0]}
    asked = RunnableConfig(configurable={**where, "checkpoint_id": info.checkpoint_id})
    found = await checkpointer.aget_tuple(asked)
    writes = (found.pending_writes if found is not None else None) or []
    for task_id, channel, interrupts in reversed(writes):
        if (task_id, channel) == (info.task_id, _INTERRUPT):
            values = [each.value for each in interrupts]
            own = (
                each for each in values if isinstance(each, dict) and each.get(_TOOL_CALL) == request.tool_call["id"]
            )
            return DeferredStep.of(next(own, None))
    return None


def _messages_of(state: Any) -> Any:
    held = state.get("messages") if isinstance(state, dict) else getattr(state, "messages", None)
    return held if isinstance(held, list) else []


def _has(message: AIMessage, call_id: str | None) -> bool:
    return any(call["id"] == call_id for call in message.tool_calls)
