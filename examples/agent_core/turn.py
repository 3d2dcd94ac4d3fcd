"""One turn of the agent: the model speaks, its tool calls run side by side, until it has only words left.

Every step is written down before the next one begins, so that a turn that was cut off goes on where it was: what the
model wants is decided once, and its calls carry keys that were written with them, so that the fleet runs each once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.calls import Calls
from agent_core.conversations import Conversations, Finish, Talk
from agent_core.history import History, Said
from agent_core.models.model import Model
from agent_core.people import People
from agent_core.settings import AgentSettings
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet.formats import from_result

Naming = Callable[[str], str]
"""Makes an idempotency key of a call's place in its conversation."""


@dataclass(frozen=True)
class Turns:
    """Runs turns. `keys_live_seconds`: how long the fleet remembers an idempotency key."""

    fleet: ToolFleet
    calls: Calls
    model: Model
    conversations: Conversations
    people: People
    settings: AgentSettings
    keys_live_seconds: float

    async def run(
        self, talk: Talk, incoming: Said, *, naming: Naming, finish: Finish | None = None, persona: str | None = None
    ) -> str:
        """Take in a message that has a `source_id` and answer it, once, however often it comes. Returns the words.

        A message before it whose turn was cut off is answered first: none gets another's answer, and a wake-up that was
        taken in is acted on before it counts as done. `finish` is written together with the last message. With the message
        the conversation comes under the `persona` that it names; without one it stays under which it is. Raises
        `ModelAway`, `FleetAway` and `ConversationMoved`; the same message may come again then, and the turn goes on.
        """
        caller = await self.people.caller(talk)
        history = await self._settled(talk, caller)
        if not history.has(incoming):
            if history.waiting() is not None:
                history = await self._spoken(talk, history, caller, naming, None)
            enter = None if persona is None else self.people.entering(talk, persona)
            history = await self.conversations.append(talk.id, history, [incoming], enter)
            caller = await self.people.caller(talk)
        elif (answered := history.answer_to(incoming)) is not None:
            await self.conversations.append(talk.id, history, [], finish)
            return answered
        history = await self._spoken(talk, history, caller, naming, finish)
        return history.said[-1].text

    async def tell(self, talk: Talk, notice: Said, finish: Finish) -> None:
        """Put a message for the user into the conversation, without the model."""
        history = await self._settled(talk, await self.people.caller(talk))
        said = [] if history.has(notice) else [notice]
        await self.conversations.append(talk.id, history, said, finish)

    async def _spoken(
        self, talk: Talk, history: History, caller: Caller, naming: Naming, finish: Finish | None
    ) -> History:
        """The history after the model has spoken, and called what it liked, until it had only words left."""
        for _ in range(self.settings.max_steps):
            tools = await self.fleet.tools(caller)
            answer = await self.model.answer(history.shown(self.settings.history_messages), tools)
            said = Said("model", answer.body, _keyed(answer.calls, naming, len(history.said)))
            history = await self.conversations.append(talk.id, history, [said], None if said.calls else finish)
            if not said.calls:
                return history
            history = await self._answered(talk, history, caller)
        stop = Said("model", {"role": "assistant", "content": f"I stopped after {self.settings.max_steps} steps."})
        return await self.conversations.append(talk.id, history, [stop], finish)

    async def _settled(self, talk: Talk, caller: Caller) -> History:
        """The history, with the results of what a turn before had begun."""
        return await self._answered(talk, await self.conversations.history(talk.id), caller)

    async def _answered(self, talk: Talk, history: History, caller: Caller) -> History:
        asked = history.unanswered()
        if not asked:
            return history
        # After that time a key is forgotten, and the call might run a second time.
        oldest = time.time() - self.keys_live_seconds
        if any(asked_at < oldest for _, _, asked_at in asked):
            results = [_too_late(call) for _, call, _ in asked]
        else:
            most = self.settings.max_calls
            results = await self.calls.run([call for _, call, _ in asked[:most]], caller, talk.place)
            results += [_too_many(call, most) for _, call, _ in asked[most:]]
        said = [self._told(result, call_id) for (call_id, _, _), result in zip(asked, results, strict=True)]
        return await self.conversations.append(talk.id, history, said)

    def _told(self, result: ToolResult, call_id: str) -> Said:
        body: dict[str, Any] = from_result(result, "openai_chat", call_id)
        text, limit = str(body["content"]), self.settings.result_chars
        return Said("tools", body if len(text) <= limit else {**body, "content": f"{text[:limit]}… (cut)"})


def _keyed(calls: Sequence[ToolCall], naming: Naming, position: int) -> tuple[ToolCall, ...]:
    return tuple(
        call.model_copy(update={"idempotency_key": naming(f"{position}.{number}")}) for number, call in enumerate(calls)
    )


def _too_many(call: ToolCall, most: int) -> ToolResult:
    error = f"Not called: {most} calls at once are the most. Look at their results first, then ask for what is left."
    return ToolResult.refused(call.tool_name, "busy", error)


def _too_late(call: ToolCall) -> ToolResult:
    error = "The core was away for so long that nobody can know whether this call was carried out."
    return ToolResult.failed(call.tool_name, "outcome_unknown", error, effect_state="unknown")
