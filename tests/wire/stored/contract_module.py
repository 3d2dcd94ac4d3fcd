"""Serves a module of the SDK with a tool for each kind of answer, and takes down what it answers to each kind of question."""

from typing import Any

from toolfleet.sdk import Accepted, Context, File, InputRequired, Module, StatusAnswer, ToolError
from toolfleet_modules.sdk.client import ModuleClient
from toolfleet_registry.contracts.inputs import CallInputs

WHO = {"who": {"method": "elicitation/create", "params": {"message": "Who?"}}}
_ASKS = InputRequired(WHO, "owls ✓", effect_state="none")
_STANDINGS = {
    "working": StatusAnswer.running(0.25, "warming", poll_after_seconds=2.0),
    "done": StatusAnswer.done({"owls": 2}),
    "failed": StatusAnswer.failed("The egg was empty.", effect_state="done"),
    "asking": StatusAnswer.asks(WHO, "owls ✓", effect_state="none"),
    "unknown": StatusAnswer.unknown(),
}


def make_nest() -> Module:
    """The module, which goes on with `nest.hatch` by itself."""
    nest = Module("nest", description="Hatches owls.", key="")

    @nest.tool(effect="read", permission="user", tags=["reading"], version="1.2")
    def echo(text: str, number: float = 1.5) -> dict[str, Any]:
        """Says it again."""
        return {"text": text, "number": number, "nothing": None}

    @nest.tool(effect="read")
    def draw() -> Any:
        """Draws an owl."""
        return File(b"\x89PNG\r\n\x1a\n", media_type="image/png", name="owl.png")

    @nest.tool(effect="idempotent")
    def fail() -> Any:
        """Fails, and says that nothing was done."""
        raise ToolError("No owl is there.", effect_state="none", retryable=True)

    @nest.tool(effect="once", daily_limit=5)
    def hatch() -> Any:
        """Goes on by itself."""
        return Accepted("egg-1", poll_after_seconds=0.5)

    @nest.tool(effect="once")
    def greet(context: Context) -> Any:
        """Asks for a name."""
        return _ASKS if context.inputs is None else "Hello"

    async def status(handle: str, *, cancel: bool, inputs: CallInputs | None) -> StatusAnswer:
        assert not cancel
        assert inputs is None
        return _STANDINGS.get(handle, StatusAnswer.running())

    nest.status(status)
    return nest


async def answers() -> dict[str, str]:
    """What it answers, by a name of the question; every answer is about the call `call-1`."""
    found = dict[str, str]()
    for name, path, question in _QUESTIONS:
        async with make_nest().client() as nest:
            if name == "reconcile accepted":
                await _execute(nest, {"tool_name": "nest.hatch", "arguments": {}})
            elif name == "reconcile done":
                await _execute(nest, {"tool_name": "nest.echo", "arguments": {"text": "hoo"}})
            elif name == "reconcile asked":
                await _execute(nest, {"tool_name": "nest.greet", "arguments": {}, "takes_input": True})
            if path == "/execute":
                found[name] = await _execute(nest, question)
            else:
                asked = nest.http.get(path) if path == "/manifest" else nest.http.post(path, json=question)
                found[name] = (await asked).raise_for_status().text
    return found


async def _execute(nest: ModuleClient, question: dict[str, Any]) -> str:
    headers = {"Idempotency-Key": "call-1", "Toolfleet-Time-Left-Ms": "30000"}
    return (await nest.http.post("/execute", json=question, headers=headers)).raise_for_status().text


_QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("manifest", "/manifest", {}),
    ("success", "/execute", {"tool_name": "nest.echo", "arguments": {"text": "tu-whit ✓"}}),
    ("files", "/execute", {"tool_name": "nest.draw", "arguments": {}}),
    ("failure", "/execute", {"tool_name": "nest.fail", "arguments": {}}),
    ("accepted", "/execute", {"tool_name": "nest.hatch", "arguments": {}}),
    ("question", "/execute", {"tool_name": "nest.greet", "arguments": {}, "takes_input": True}),
    ("reconcile unknown", "/reconcile", {"call_id": "call-1"}),
    ("reconcile accepted", "/reconcile", {"call_id": "call-1"}),
    ("reconcile done", "/reconcile", {"call_id": "call-1"}),
    ("reconcile asked", "/reconcile", {"call_id": "call-1"}),
    *(
        (f"status {handle}", "/status", {"call_id": "call-1", "handle": handle, "takes_input": True})
        for handle in _STANDINGS
    ),
]
