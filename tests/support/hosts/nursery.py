"""A module that goes on with its calls by itself, and asks meanwhile: a test sees what it was answered, and holds its answers."""

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.module_server import ModuleServer, Request
from support.waiting import wait_until

WHO: dict[str, Any] = {"who": {"method": "elicitation/create", "params": {"message": "Who?"}}}


@dataclass
class Nursery:
    """`asks`: how often a call asks. `begun` has the call ids, `asked` the questions where they are, `taken` each answer once.

    `held`: questions that bring an answer wait, once that is taken.
    """

    server: ModuleServer = field(default_factory=lambda: ModuleServer("nursery"))
    asks: int = 1
    is_held: bool = False
    begun: list[str] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)
    taken: list[Any] = field(default_factory=list)

    def start_anew(self) -> None:
        """Forget what was, for the next test."""
        self.asks, self.is_held = 1, False
        self.begun, self.asked, self.taken = [], [], []
        self.server.forget()

    async def tend(self, request: Request) -> web.StreamResponse:
        self.begun.append(request["tool_name"])
        said = {"tool_name": request["tool_name"], "accepted": True, "handle": f"egg-{len(self.begun)}"}
        return web.json_response({**said, "poll_after_seconds": 0.2})

    async def status(self, question: Request) -> dict[str, Any]:
        self.asked.append(question)
        inputs = question.get("inputs") or {"round": 0}
        if inputs["round"] > len(self.taken):
            self.taken.append(inputs["responses"])
            await wait_until(lambda: not self.is_held, "it may go on")
            return {"state": "running", "poll_after_seconds": 0.2}
        if len(self.taken) < self.asks:
            asked = {"requests": WHO, "state": f"after {len(self.taken)}"}
            return {"state": "input_required", "input_required": asked}
        return {"state": "done", "success": True, "result": [inputs.get("state"), self.taken], "error": None}

    @property
    def cancelled(self) -> list[Request]:
        """The questions that said that nobody wants the call any more."""
        return [question for question in self.asked if question.get("cancel")]


def make_nursery() -> Nursery:
    """The module, to be served with `module_server.serve(nursery.server)`."""
    nursery = Nursery()
    nursery.server.add("tend", nursery.tend, effect="once")
    nursery.server.statuses = nursery.status
    return nursery
