"""A module that writes down what it does, and misbehaves as it is asked to: `python -m chaos.processes.module NAME PORT JOURNAL`.

It never recognises a repeated call: what the journal shows is the fleet's own doing. Only where it was asked what became of a
call that it does not know, and has said "nothing", does it turn that call away for good.
"""

import asyncio
import os
import random
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

from chaos.plan import BEHAVIOURS, EFFECTLESS, EFFECTS, LOOK, RECONCILING, is_hostile
from chaos.processes import hostile
from chaos.records.journal import Entry, JournalTail, JournalWriter

READY = "module ready"
CRASHED = 70
_FOR_EVER = 3600
_ARGUMENTS = {"ref": "string", "first": "string", "then": "string", "before_ms": "number", "after_ms": "number"}
_LOOKED_AT = {"ref": "string", "ends": "string", "looks": "number", "over_at": "number", "task": "string"}
_LONGEST_LOOK = 0.5  # seconds, before its effect and after it


class Module:
    """The tools: one for each effect, `look`, which says how a job's work is doing, and those with hostile schemas.

    `ref` names the caller's intention, across calls with other ids.
    """

    offers_hostile = True

    def __init__(self, name: str, journal: Path) -> None:
        self.name = name
        self._journal = JournalWriter(journal)
        self._requests: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._denied: set[str] = set()
        self._done: dict[str, Entry] = {}
        self._looks: Counter[str] = Counter()
        self._crashes_next = False
        before = JournalTail(journal, from_start=True)
        for entry in before.new():
            self._remember(entry)
        before.close()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/manifest", self._manifest)
        app.router.add_post("/execute", self._execute)
        app.router.add_post("/crash", self._crash)
        if self.name == RECONCILING:
            app.router.add_post("/reconcile", self._reconcile)
        return app

    def _remember(self, entry: Entry) -> None:
        if entry.mark == "denied":
            self._denied.add(entry.call_id)
        elif entry.mark == "effect":
            self._done[entry.call_id] = entry
            self._looks[entry.ref] += entry.is_look

    async def _manifest(self, _: web.Request) -> web.Response:
        tools: list[dict[str, Any]] = []
        for name in (*EFFECTS, LOOK):
            declared = {} if name == "undeclared" else {"effect": "read" if name == LOOK else name}
            known = _LOOKED_AT if name == LOOK else _ARGUMENTS
            parameters = [{"name": one, "type": kind, "description": ""} for one, kind in known.items()]
            tools.append({"name": f"{self.name}.{name}", "description": name, "parameters": parameters, **declared})
        if self.offers_hostile and self.name == hostile.OWNER:
            tools += hostile.definitions()
        return web.json_response({"module_name": self.name, "description": "", "tools": tools})

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        call_id, body = request.headers["Idempotency-Key"], await request.json()
        self._running[call_id] += 1
        try:
            return await self._run(request, call_id, body["tool_name"], body["arguments"])
        finally:
            self._running[call_id] -= 1

    async def _run(self, request: web.Request, call_id: str, tool: str, wish: dict[str, Any]) -> web.StreamResponse:
        if call_id in self._denied:
            return web.Response(status=409, text="it was said that this call never ran")
        port = request.transport.get_extra_info("peername")[1] if request.transport else 0
        about = {"port": port, "execution": uuid.uuid4().hex}
        self._journal.write("start", call_id, wish["ref"], tool, **about)
        self._requests[call_id] += 1
        way = self._way_of(call_id, tool, wish)
        behaviour = way["first"] if self._requests[call_id] == 1 else way["then"]
        await asyncio.sleep(way["before_ms"] / 1000)
        works = behaviour not in EFFECTLESS and behaviour != "fails" and wish.get("ends") != "broken"
        reply: dict[str, Any] = {"tool_name": tool, "success": works, "result": None, "error": None}
        if behaviour not in EFFECTLESS:
            reply["result"] = {"execution": about["execution"], **self._seen(wish)}
            reply["error"] = None if works else "It did not work out."
            self._journal.write("effect", call_id, wish["ref"], tool, reply=reply, **about)
            self._remember(Entry("effect", call_id, wish["ref"], tool, 0, os.getpid(), port, reply))
            if self._crashes_next or behaviour == "crashes":
                os._exit(CRASHED)
        await asyncio.sleep(way["after_ms"] / 1000)
        self._journal.write("reply", call_id, wish["ref"], tool, **about)
        if is_hostile(tool):
            reply["result"] = {**hostile.answer(tool), **reply["result"]}
        return await _answer(request, behaviour, reply)

    @staticmethod
    def _way_of(call_id: str, tool: str, wish: dict[str, Any]) -> dict[str, Any]:
        """As it is asked for. Polls of one job have the same arguments, and not the same luck."""
        if is_hostile(tool):
            return {"first": "ok", "then": "ok", "before_ms": 0, "after_ms": 0}
        if not tool.endswith(f".{LOOK}"):
            return wish
        dice = random.Random(call_id)
        (first,) = dice.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
        waits = {name: dice.choice((0, dice.uniform(0, _LONGEST_LOOK))) * 1000 for name in ("before_ms", "after_ms")}
        return {"first": first, "then": "ok", **waits}

    def _seen(self, wish: dict[str, Any]) -> dict[str, Any]:
        """How the work is doing: over after so many looks, or from that moment on."""
        if "ends" not in wish:
            return {}
        is_over = wish["ends"] != "never" and (
            self._looks[wish["ref"]] >= wish["looks"] or time.time() >= wish["over_at"]
        )
        return {"status": wish["ends"] if is_over else "running", "task": wish["task"]}

    async def _crash(self, _: web.Request) -> web.Response:
        """End at the next effect, before anybody is told of it."""
        self._crashes_next = True
        return web.Response()

    async def _reconcile(self, request: web.Request) -> web.Response:
        call_id = (await request.json())["call_id"]
        if self._running[call_id]:
            return web.json_response({"call_id": call_id, "state": "running"})
        if call_id in self._done:
            reply = {key: self._done[call_id].reply[key] for key in ("success", "result", "error")}
            return web.json_response({"call_id": call_id, "state": "done", **reply})
        if call_id not in self._denied:  # a request may still be in a socket: from now on it is turned away
            self._denied.add(call_id)
            self._journal.write("denied", call_id, "", "")
        return web.json_response({"call_id": call_id, "state": "none"})


async def _answer(request: web.Request, behaviour: str, reply: dict[str, Any]) -> web.StreamResponse:
    match behaviour:
        case "fails_clean":
            return web.json_response({**reply, "error": "Not possible.", "effect_state": "none"})
        case "error" | "gateway":
            return web.Response(status=500 if behaviour == "error" else 502, text="broken")
        case "busy":
            return web.Response(status=503, headers={"Retry-After": "0.2"}, text="later")
        case "garbles":
            return web.Response(text='{"tool_name": ', content_type="application/json")
        case "hangs":
            await asyncio.sleep(_FOR_EVER)
        case "hangs_up":
            if request.transport:
                request.transport.abort()
        case _:
            pass
    return web.json_response(reply)


async def _serve(name: str, port: int, journal: Path) -> None:
    # A request that nobody waits for any more goes on: that is the worst that a module can do to its callers.
    runner = web.AppRunner(Module(name, journal).app(), handler_cancellation=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, backlog=1024).start()
    print(READY, flush=True)  # noqa: T201 - for who started us
    await asyncio.sleep(_FOR_EVER * 24)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
