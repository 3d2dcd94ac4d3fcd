"""Tools that ask before they go on: each question once for a call, and each answer once, in whichever process."""

from collections.abc import Callable
from typing import Any

import pytest

from toolfleet.sdk import Context, InputRequired, Module, Replies
from toolfleet_modules.calls.reply import Reply
from toolfleet_registry.contracts.inputs import STATE_BYTES, CallInputs

MakeReplies = Callable[[], Replies]
WHO = {"who": {"method": "elicitation/create", "params": {"message": "Who?"}}}
ADA = CallInputs(round=1, responses={"who": {"action": "accept", "content": {"name": "Ada"}}}, state="owls ✓")


def make_desk(seen: list[CallInputs | None], replies: Replies | None = None, *, returns: bool = False) -> Module:
    desk = Module("desk", replies=replies, key="")

    @desk.tool(effect="once")
    async def greet(context: Context) -> Any:
        """Greet somebody, once it is known whom."""
        seen.append(context.inputs)
        if context.inputs is None:
            asked = InputRequired(WHO, "owls ✓", effect_state="none")
            if returns:
                return asked
            raise asked
        return f"Hello {context.inputs.responses['who']['content']['name']}, {context.inputs.state}"

    return desk


@pytest.mark.parametrize("returns", [False, True], ids=["raised", "returned"])
async def test_a_tool_asks_and_is_called_again(make_replies: MakeReplies, returns: bool) -> None:
    """Each round runs once: a repeat of the question's is asked the same, one of the answer's has the same result, also elsewhere."""
    seen = list[CallInputs | None]()
    one, other = make_desk(seen, make_replies(), returns=returns), make_desk(seen, make_replies(), returns=returns)
    async with one.client() as here, other.client() as there:
        for client in (here, there):
            asked = await client.send("greet", {}, call_id="call-1", takes_input=True)
            assert (asked.requests, asked.state, asked.effect_state) == (WHO, "owls ✓", "none")
            assert (await client.reconcile("call-1"))["state"] == "input_required"
        for client in (there, here):
            told = await client.send("greet", {}, call_id="call-1", takes_input=True, inputs=ADA)
            assert (told.success, told.result) == (True, "Hello Ada, owls ✓")
        known = await here.reconcile("call-1", number=1)
        assert (known["state"], known["call_id"], known["result"]) == ("done", "call-1", "Hello Ada, owls ✓")
        health = (await here.http.get("/health")).json()
    assert [inputs is not None for inputs in seen] == [False, True]
    assert (health["asked"], health["running"]) == (1, 0)


async def test_a_caller_who_takes_no_input_is_told(make_replies: MakeReplies) -> None:
    """The call has failed, and says what the tool has said of its effect: nothing was done, so it may run again."""
    seen = list[CallInputs | None]()
    async with make_desk(seen, make_replies()).client() as client:
        refused = await client.send("greet", {}, call_id="call-1")
        asked = await client.send("greet", {}, call_id="call-1", takes_input=True)

    assert (refused.success, refused.effect_state, asked.requests) == (False, "none", WHO)
    assert "cannot be asked" in (refused.error or "")


@pytest.mark.parametrize(
    ("requests", "state"),
    [
        ({}, ""),
        ({"": WHO["who"]}, ""),
        ({"who": "Ada"}, ""),
        ({"who": {"method": "tools/call"}}, ""),
        ({"who": {"method": "roots/list", "params": []}}, ""),
        ({"who": {"method": "roots/list", "params": {"n": float("nan")}}}, ""),
        ({str(number): {"method": "roots/list"} for number in range(33)}, ""),
        (WHO, "x" * STATE_BYTES),
        ({"who": {"method": "elicitation/create", "params": {"message": "x" * 300_000}}}, ""),
    ],
)
def test_what_is_no_question_is_refused_where_it_is_made(requests: Any, state: str) -> None:
    """In the tool, with a reason: too many, too much, or nothing that anybody could answer."""
    with pytest.raises(ValueError, match=r"\w"):
        InputRequired(requests, state)
    with pytest.raises(ValueError, match=r"\w"):
        Reply.question("desk.greet", requests, state)


async def test_inputs_that_are_none_are_refused() -> None:
    """Before anything runs."""
    seen = list[CallInputs | None]()
    async with make_desk(seen).client() as client:
        wrong: list[Any] = [{"round": 0, "responses": {}}, {"round": 99, "responses": {}}, {"responses": {}}, "Ada"]
        for inputs in wrong:
            body = {"tool_name": "desk.greet", "arguments": {}, "inputs": inputs}
            assert (await client.http.post("/execute", json=body)).status_code == 422
    assert seen == []
