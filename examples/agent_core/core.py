"""The core itself: what users say, and what the fleet wakes it for, each led to its conversation and answered once."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar
from uuid import uuid4

from agent_core.bodies import ConversationOut, MessageIn, MessageOut, Reply, Upload
from agent_core.conversations import ConversationMoved, Conversations, Talk
from agent_core.history import Said
from agent_core.occupied import OneAtATime
from agent_core.settings import AgentSettings
from agent_core.turn import Turns
from agent_core.wording import wake_message
from modules.files import FilePipeline
from toolfleet import Conversation
from toolfleet.webhooks import Delivery, WakeReceiver, WakeUp

_SHORT_PATIENCE_SECONDS = 1.0  # of a wake-up: its sender comes again by itself
_TRIES = 5

T = TypeVar("T")


class UnknownConversation(Exception):
    """A wake-up for a conversation that is not here, or not that user's."""


@dataclass(frozen=True)
class Core:
    """What the HTTP routes call."""

    turns: Turns
    conversations: Conversations
    receiver: WakeReceiver
    files: FilePipeline
    occupied: OneAtATime
    settings: AgentSettings

    async def message(self, message: MessageIn) -> Reply:
        """Register the files of a user's message, run a turn with it, and bring the model's words.

        Raises `UnknownPersona`, and what the turn raises.
        """
        if message.persona is not None:
            await self.turns.people.check_persona(message.persona)
        talk = await self.conversations.at(message.user_id, message.place)
        # With an id of its own it may be begun anew when another core was faster.
        said = Said("user", {"role": "user", "content": message.text}, source_id=message.message_id or uuid4().hex)
        async with self.occupied.turn(talk.id, seconds=self.settings.patience_seconds):
            answer = await _repeated(lambda: self._answer(talk, said, message))
        return Reply(conversation_id=talk.id, text=answer)

    async def resume(self, headers: Mapping[str, str], body: bytes) -> None:
        """Have the model hear of a job's end, once. Raises `WakeRefused` for what is not the fleet's."""

        async def act(delivery: Delivery, wake: WakeUp, talk: Talk) -> None:
            said = Said("wake", wake_message(wake), source_id=wake.wake_id)
            await self.turns.run(talk, said, naming=delivery.key, finish=delivery.done_in)

        await self._act(headers, body, act)

    async def notify(self, headers: Mapping[str, str], body: bytes) -> None:
        """Tell the user of a job's end, once, without the model."""

        async def act(delivery: Delivery, wake: WakeUp, talk: Talk) -> None:
            notice = Said("notice", {"role": "assistant", "content": wake.message}, source_id=wake.wake_id)
            await self.turns.tell(talk, notice, delivery.done_in)

        await self._act(headers, body, act, kind="notify")

    async def shown(self, conversation_id: str) -> ConversationOut | None:
        """A conversation with what was said in it."""
        talk = await self.conversations.get(conversation_id)
        if talk is None:
            return None
        history = await self.conversations.history(talk.id)
        messages = [MessageOut.of(said) for said in history.said]
        return ConversationOut(conversation_id=talk.id, user_id=talk.user_id, messages=messages)

    async def _act(
        self,
        headers: Mapping[str, str],
        body: bytes,
        act: Callable[[Delivery, WakeUp, Talk], Awaitable[None]],
        *,
        kind: Literal["continue", "notify"] = "continue",
    ) -> None:
        async with self.receiver.receive(headers, body, kind=kind) as delivery:
            wake = delivery.wake
            if wake is None:  # acted on before
                return
            talk = await self._talk(wake)
            async with self.occupied.turn(talk.id, seconds=_SHORT_PATIENCE_SECONDS):
                await _repeated(lambda: act(delivery, wake, talk))

    async def _answer(self, talk: Talk, said: Said, message: MessageIn) -> str:
        """The model's words to a user's message. Its files are registered right before it is written down, not after."""

        def naming(place: str) -> str:
            return f"{talk.id}.{place}"

        if message.files and not (history := await self.conversations.history(talk.id)).has(said):
            # First, for that turn too may change files: registered before it, and once more should it fail, they would
            # be put back as they were sent.
            if (cut_off := history.waiting()) is not None:
                await self.turns.run(talk, cut_off, naming=naming)
            text = "\n".join([said.text, *[await self._uploaded(talk.user_id, file) for file in message.files]])
            said = replace(said, body={**said.body, "content": text})
        return await self.turns.run(talk, said, naming=naming, persona=message.persona)

    async def _uploaded(self, user_id: str, upload: Upload) -> str:
        """Register a file as the file modules do; what the model is told of it."""
        record = await self.files.save(user_id, upload.name, upload.content, "upload")
        return f"(A file is attached: {record.name!r}, {record.size} bytes.)"

    async def _talk(self, wake: WakeUp) -> Talk:
        if wake.conversation_id is not None:
            talk = await self.conversations.get(wake.conversation_id)
            if talk is None or talk.user_id != wake.user_id:
                raise UnknownConversation(wake.conversation_id)
            return talk
        if wake.user_id is None:
            raise UnknownConversation
        fields = wake.model_dump(include={"platform", "platform_channel_id", "platform_thread_id"})
        return await self.conversations.at(wake.user_id, Conversation(**fields))


async def _repeated(turn: Callable[[], Awaitable[T]]) -> T:
    """Run a turn; anew, for some times, if another core has written in its conversation meanwhile."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(ConversationMoved):
            return await turn()
    return await turn()
