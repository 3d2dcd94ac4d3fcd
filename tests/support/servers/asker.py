"""A module that asks before it goes on: a test sees what it was answered, and says what it asks."""

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.module_server import ModuleServer, Request
from support.waiting import PATIENCE_SECONDS, wait_until

WHO: dict[str, Any] = {"who": {"method": "elicitation/create", "params": {"message": "Who?"}}}
ADA: dict[str, Any] = {"who": {"action": "accept", "content": {"name": "Ada"}}}
BOB: dict[str, Any] = {"who": {"action": "accept", "content": {"name": "Bob"}}}


@dataclass
class Asker:
    """`asks`: how often a call asks. `state`: what it gives away. `effect_state`: what it says of its effect, if anything.

    `held`: requests of these rounds wait. `done` has what was done, `seen` each attempt's inputs with its attempt's number.
    """

    server: ModuleServer = field(default_factory=lambda: ModuleServer("desk"))
    asks: int = 1
    state: str = "sealed ✓"
    effect_state: str | None = "none"
    fails: int = 0
    held: set[int] = field(default_factory=set)
    done: list[Any] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)

    def start_anew(self) -> None:
        """Forget what was, for the next test."""
        self.asks, self.state, self.effect_state, self.fails = 1, "sealed ✓", "none", 0
        self.held, self.done, self.seen = set(), [], []
        self.server.memory = None
        self.server.forget()

    async def greet(self, request: Request) -> web.StreamResponse:
        inputs = request.get("inputs", {"round": 0})
        self.seen.append(inputs)
        await wait_until(lambda: inputs["round"] not in self.held, "it may go on", seconds=3 * PATIENCE_SECONDS)
        if self.fails:
            self.fails -= 1
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "0"})
        if inputs["round"] < self.asks:
            return web.json_response(self.question(request["tool_name"]))
        self.done.append(inputs.get("responses"))
        said = {"tool_name": request["tool_name"], "success": True, "result": inputs, "error": None}
        return web.json_response(said)

    def question(self, tool: str) -> dict[str, Any]:
        """What it asks."""
        said = {"tool_name": tool, "input_required": {"requests": WHO, "state": self.state}}
        return said if self.effect_state is None else {**said, "effect_state": self.effect_state}


def make_asker() -> Asker:
    """The module, to be served with `module_server.serve(asker.server)`."""
    asker = Asker()
    asker.server.add("greet", asker.greet, effect="once")
    asker.server.add("warm", asker.greet, effect="read")
    return asker
