"""A model of Pydantic AI's that follows a script."""

from collections.abc import AsyncIterator, Sequence

from pydantic_ai import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel


class PydanticScript:
    """A model that calls tools, one list of calls for each step, and then says "done". `seen` has the tools of each step."""

    def __init__(self, *steps: Sequence[ToolCallPart]) -> None:
        self._steps = list(steps)
        self.seen: list[list[str]] = []

    def model(self) -> FunctionModel:
        return FunctionModel(self._answer, stream_function=self._streamed)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append([tool.name for tool in info.function_tools])
        step = self._steps.pop(0) if self._steps else [TextPart("done")]
        return ModelResponse(parts=list(step))

    async def _streamed(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        for number, part in enumerate(self._answer(messages, info).parts):
            if isinstance(part, ToolCallPart):
                yield {number: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}
            elif isinstance(part, TextPart):
                yield part.content
