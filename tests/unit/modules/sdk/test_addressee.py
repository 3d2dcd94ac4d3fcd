"""A request that names the process that is meant: another one at its address does nothing, and has no word on what that one did."""

import pytest

from toolfleet.sdk import Module


def make_owls(replica_id: str, key: str | None = None) -> Module:
    owls = Module("owls", key=key)
    owls.replica_id = replica_id

    @owls.tool(effect="once")
    async def count() -> int:
        return 5

    return owls


def body(path: str) -> dict[str, object]:
    return {"call_id": "call-1"} if path == "/reconcile" else {"tool_name": "owls.count", "arguments": {}}


@pytest.mark.parametrize("path", ["/execute", "/reconcile"])
async def test_another_process_says_that_it_was_not_meant(path: str) -> None:
    """Before it looks at anything: it may be another module's by now, with another key."""
    async with make_owls("new", key="a key of more than thirty-two characters").client() as client:
        answer = await client.http.post(path, json=body(path), headers={"Toolfleet-Replica": "old"})

    assert (answer.status_code, answer.headers["Toolfleet-Replica"]) == (409, "new")


@pytest.mark.parametrize(("own", "meant"), [("own", "own"), ("own", ""), ("", "old")])
@pytest.mark.parametrize("path", ["/execute", "/reconcile"])
async def test_everybody_else_answers(path: str, own: str, meant: str) -> None:
    """It is meant, nobody is, or it has no id: a module in any language knows nothing of them."""
    headers = {"Toolfleet-Replica": meant} if meant else {}
    async with make_owls(own).client() as client:
        answer = await client.http.post(path, json=body(path), headers=headers)

    assert answer.status_code == 200


async def test_a_stranger_has_executed_nothing() -> None:
    """So the call can be had done elsewhere, or here by whoever means this one."""
    async with make_owls("new").client() as client:
        names = {"Idempotency-Key": "call-1", "Toolfleet-Replica": "old"}
        await client.http.post("/execute", json=body("/execute"), headers=names)
        health = (await client.http.get("/health")).json()

    assert (health["succeeded"], health["failed"]) == (0, 0)
