"""Conversations in SQL: what is written once, in which order, and what survives."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from agent_core.conversations import ConversationMoved, Conversations, open_engine
from agent_core.history import History, Said
from toolfleet import Conversation, ToolCall

CHAT = Conversation(platform="chat", platform_channel_id="c1")


@pytest.fixture
async def conversations(tmp_path: Path) -> Conversations:
    return await opened(tmp_path)


async def opened(folder: Path) -> Conversations:
    conversations = Conversations(open_engine(f"sqlite:///{folder / 'agent.db'}"))
    await conversations.make_tables()
    return conversations


def user(words: str, source_id: str | None = None) -> Said:
    return Said("user", {"role": "user", "content": words}, source_id=source_id)


def wake(source_id: str) -> Said:
    return Said("wake", {"role": "user", "name": "fleet", "content": "a job has ended"}, source_id=source_id)


def model(words: str) -> Said:
    return Said("model", {"role": "assistant", "content": words})


def asking(*names: str) -> Said:
    asked = [{"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    calls = tuple(ToolCall(tool_name=name, idempotency_key=f"key-{name}") for name in names)
    return Said("model", {"role": "assistant", "content": None, "tool_calls": asked}, calls)


async def test_a_place_has_one_conversation_also_when_two_ask_at_once(conversations: Conversations) -> None:
    """User, platform, channel and thread name a conversation; whoever differs in one has another."""
    talks = await asyncio.gather(*(conversations.at("ada", CHAT) for _ in range(8)))
    others = [await conversations.at("bob", CHAT), await conversations.at("ada", Conversation(platform="chat"))]

    assert len({talk.id for talk in talks}) == 1
    assert len({talks[0].id, *(talk.id for talk in others)}) == 3
    assert talks[0].place == CHAT.model_copy(update={"conversation_id": talks[0].id})
    assert await conversations.get(talks[0].id) == talks[0]
    assert await conversations.get("nothing") is None


async def test_what_was_said_is_there_after_a_restart(conversations: Conversations, tmp_path: Path) -> None:
    """Messages come back in their order, with calls and their keys, from a new process's view of the database."""
    talk = await conversations.at("ada", CHAT)
    written = await conversations.append(talk.id, History(), [user("build", "m1"), asking("a.b", "c.d")])

    read = await (await opened(tmp_path)).history(talk.id)

    assert read == written
    assert [(call_id, call.idempotency_key) for call_id, call, _ in read.unanswered()] == [
        ("id-a.b", "key-a.b"),
        ("id-c.d", "key-c.d"),
    ]


async def test_who_writes_after_others_learns_that_it_is_late(conversations: Conversations) -> None:
    """Of two that continue from the same point one is refused, and nothing of it is kept."""
    talk = await conversations.at("ada", CHAT)
    began = await conversations.append(talk.id, History(), [user("hello")])
    ended = await asyncio.gather(
        conversations.append(talk.id, began, [model("one")]),
        conversations.append(talk.id, began, [model("two"), model("more")]),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in ended].count(ConversationMoved) == 1
    (winner,) = [outcome for outcome in ended if isinstance(outcome, History)]
    assert await conversations.history(talk.id) == winner


async def test_a_message_with_an_id_is_taken_in_once(conversations: Conversations) -> None:
    """The same `source_id` cannot be written a second time, from wherever."""
    talk = await conversations.at("ada", CHAT)
    began = await conversations.append(talk.id, History(), [user("hello", "m1")])

    with pytest.raises(ConversationMoved):
        await conversations.append(talk.id, began, [user("hello", "m1")])


async def test_the_last_message_and_what_finishes_it_are_one_transaction(conversations: Conversations) -> None:
    """If the mark cannot be written, neither is the message."""
    talk = await conversations.at("ada", CHAT)

    def fails(connection: Connection) -> None:
        connection.execute(text("INSERT INTO nowhere VALUES (1)"))

    with pytest.raises(Exception, match="nowhere"):
        await conversations.append(talk.id, History(), [user("hello")], fails)

    assert await conversations.history(talk.id) == History()


def test_a_message_is_answered_by_the_models_next_words() -> None:
    """Tool calls, results and notices are no answer; before one there is none."""
    results = Said("tools", {"role": "tool", "tool_call_id": "id-a.b", "content": "1"})
    notice = Said("notice", {"role": "assistant", "content": "by the way"})
    history = History((user("hello", "m1"), asking("a.b"), results, notice))

    hello = history.said[0]
    assert history.has(hello)
    assert history.answer_to(hello) is None
    assert history.waiting() == hello
    answered = History((*history.said, model("hi"), notice))
    assert answered.answer_to(hello) == "hi"
    assert answered.answer_to(user("hello", "m2")) is None
    assert answered.waiting() is None


def test_what_is_said_to_another_message_is_no_answer() -> None:
    """The words after the next message belong to that one."""
    history = History((user("hello", "m1"), wake("w1"), model("done")))

    assert history.answer_to(history.said[0]) is None
    assert history.answer_to(history.said[1]) == "done"


async def test_a_bots_ids_are_not_the_fleets(conversations: Conversations) -> None:
    """A message and a wake-up with the same id are two, and both are taken in."""
    talk = await conversations.at("ada", CHAT)
    began = await conversations.append(talk.id, History(), [user("hello", "j1"), model("hi")])
    assert began.has(user("hello", "j1"))
    assert not began.has(wake("j1"))

    assert len((await conversations.append(talk.id, began, [wake("j1")])).said) == 3


def test_the_model_is_shown_the_latest_from_where_a_user_speaks() -> None:
    """No result is shown without the call that it belongs to, and a long turn is shown whole."""
    results = Said("tools", {"role": "tool", "tool_call_id": "id-a.b", "content": "1"})
    history = History((user("one"), asking("a.b"), results, model("done"), user("two"), asking("a.b"), results))

    assert [body["role"] for body in history.shown(6)] == ["user", "assistant", "tool"]
    assert [body["role"] for body in history.shown(2)] == ["user", "assistant", "tool"]
    assert len(history.shown(100)) == 7
