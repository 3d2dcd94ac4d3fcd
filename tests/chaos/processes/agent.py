"""An agent that makes calls of every kind: `python -m chaos.processes.agent NUMBER CALLS SECONDS SEED FOLDER`, settings from the environment.

Makes its calls evenly spread over the time, in single ones and in bursts; writes down how each ended. At SIGUSR1 it makes a
burst of some hundreds in one tick, at SIGHUP calls of tools with hostile schemas; it ends after SIGUSR2.
"""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from chaos.checks.call_checks import OTHER
from chaos.plan import BEHAVIOURS, BURST, EFFECTS, LONGEST_TIMEOUT_SECONDS, MARGIN_SECONDS, MODULES
from chaos.processes import hostile
from chaos.records.outcomes import FIRST, SECOND, Ending, Way
from toolfleet import Caller, CallHandle, ToolCall, ToolFleet
from toolfleet_registry.contracts import ToolResult

READY = "agent ready"
MADE = "calls made:"
_IN_FLIGHT = 400
_HANGS_AFTER = 20.0  # seconds beyond deadline and margin: then nobody waits any more
_BURST_CHANCE, _SMALLEST_BURST, _LARGEST_BURST = 0.03, 10, 60
_USERS, _BURST_USERS = 6, 50
_SHARED_CHANCE = 0.4
_WAYS: dict[Way, int] = {
    "called": 50,
    "submitted": 14,
    "cancelled": 12,
    "given_up": 6,
    "many": 6,
    "keyed": 12,
    "paired": 10,
}


class Agent:
    """Makes calls with a fleet, by its own dice."""

    def __init__(self, number: int, fleet: ToolFleet, seed: int, endings: Path) -> None:
        self._number = number
        self._fleet = fleet
        self._dice = random.Random(f"{seed} {number}")
        self._seed = seed
        self._shared = 0
        self._file = endings.open("a")
        self._made = 0
        self._made_at_once = 0  # because somebody wanted it, beside what was planned
        self._is_enough = asyncio.Event()
        self._busy: set[asyncio.Task[object]] = set()

    async def make(self, calls: int, *, within: float) -> None:
        """Make so many calls, spread over so many seconds; returns when that is enough and all have ended."""
        began_at = time.monotonic()
        while self._made < calls:
            burst = self._dice.randint(_SMALLEST_BURST, _LARGEST_BURST) if self._dice.random() < _BURST_CHANCE else 1
            caller = _caller(self._dice)
            for _ in range(burst):
                self._begin(caller)
            due = began_at + self._made / calls * within
            await asyncio.sleep(max(due - time.monotonic(), 0))
            while len(self._busy) > _IN_FLIGHT:
                await asyncio.wait(self._busy, return_when=asyncio.FIRST_COMPLETED)
        await self._is_enough.wait()
        while self._busy:
            await asyncio.wait(self._busy)
        self._file.close()
        print(MADE, self._made + self._made_at_once, flush=True)  # noqa: T201 - for who started us

    def obey(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do at signals what the others want of it."""
        loop.add_signal_handler(signal.SIGUSR1, self._burst)
        loop.add_signal_handler(signal.SIGHUP, self._be_hostile)
        loop.add_signal_handler(signal.SIGUSR2, self._is_enough.set)

    def _burst(self) -> None:
        """Hundreds of calls in one tick, of users who have few each."""
        for number in range(BURST):
            self._made_at_once += 1
            ref = f"burst-{self._number}-{self._made_at_once}-{self._dice.getrandbits(32):08x}"
            wish = {"first": "ok", "then": "ok", "before_ms": 0, "after_ms": self._dice.choice((0, 2, 20))}
            tool = f"{self._dice.choice(MODULES)}.{self._dice.choice(EFFECTS)}"
            call = ToolCall(tool_name=tool, arguments={"ref": ref, **wish})
            caller = Caller(user_id=f"burst-{number % _BURST_USERS}", permission="user", allowed_modules="*")
            timeout = LONGEST_TIMEOUT_SECONDS
            self._spawn(self._note("burst", call, timeout, self._run(call, caller, timeout)))

    def _be_hostile(self) -> None:
        """Send what takes long to check, and have such be answered."""
        for tool, arguments in hostile.calls(self._dice, f"hostile-{self._number}-{self._made_at_once}"):
            self._made_at_once += 1
            call, timeout = ToolCall(tool_name=tool, arguments=arguments), LONGEST_TIMEOUT_SECONDS
            self._spawn(self._note("hostile", call, timeout, self._of_hostile(call, timeout)))

    def _begin(self, caller: Caller) -> None:
        (way,) = self._dice.choices(list(_WAYS), list(_WAYS.values()))
        if way in {"keyed", "paired"}:
            self._keyed(caller) if way == "keyed" else self._paired(caller)
            return
        calls = [self._call(self._dice) for _ in range(self._dice.randint(2, 4) if way == "many" else 1)]
        self._made += len(calls)
        delay = self._dice.choice((0.0, 0.02, 0.1, 0.5, 2.0))
        timeout = self._timeout()
        if way == "many":
            self._spawn(self._many(calls, caller, timeout))
        elif way in {"submitted", "cancelled"}:
            self._spawn(self._handle(calls[0], caller, timeout, cancel_after=delay if way == "cancelled" else None))
        elif way == "given_up":
            self._spawn(self._give_up(calls[0], caller, timeout, after=delay))
        else:
            self._spawn(self._note("called", calls[0], timeout, self._run(calls[0], caller, timeout)))

    def _keyed(self, caller: Caller) -> None:
        """One intention under one key: at once, again and again, and perhaps once with other arguments.

        Some have the same dice in every agent, so that all of them make the same call at about the same time.
        """
        call = self._call(self._dice)
        if self._dice.random() < _SHARED_CHANCE:
            self._shared += 1
            dice = random.Random(f"{self._seed} shared {self._shared}")
            caller, call = _caller(dice), self._call(dice, name=f"shared-{self._shared}")
        call = call.model_copy(update={"idempotency_key": f"key of {call.arguments['ref']}"})
        other = call.model_copy(update={"arguments": {**call.arguments, "ref": call.arguments["ref"] + OTHER}})
        for again in range(self._dice.randint(2, 3)):
            self._made += 1
            timeout, delay = self._timeout(), again * self._dice.choice((0.0, 0.01, 0.2, 3.0))
            self._spawn(self._note("keyed", call, timeout, self._run(call, caller, timeout, after=delay), delay))
        if self._dice.random() < 0.3:
            self._made += 1
            timeout = self._timeout()
            self._spawn(self._note("conflicting", other, timeout, self._run(other, caller, timeout, after=0.1), 0.1))

    def _paired(self, caller: Caller) -> None:
        """Two writes of one thing, of which the second is made when the first one's success was told."""
        self._made += 1
        thing = f"pair-{self._number}-{self._made}-{self._dice.getrandbits(32):08x}"
        tool, waits = f"{self._dice.choice(MODULES)}.idempotent", self._dice.choices((0, 2, 20, 100), k=2)
        wish = {"first": "ok", "then": "ok", "before_ms": waits[0], "after_ms": waits[1]}
        first, second = (ToolCall(tool_name=tool, arguments={"ref": thing + end, **wish}) for end in (FIRST, SECOND))
        timeout = self._timeout()

        async def write() -> None:
            if (
                result := await self._note("paired", first, timeout, self._run(first, caller, timeout))
            ) and result.success:
                self._made_at_once += 1
                await self._note("paired", second, timeout, self._run(second, caller, timeout))

        self._spawn(write())

    def _call(self, dice: random.Random, *, name: str = "") -> ToolCall:
        (first,) = dice.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
        arguments = {
            "ref": f"{name or f'{self._number}-{self._made}'}-{dice.getrandbits(32):08x}",
            "first": first,
            "then": first if dice.random() < 0.3 else "ok",
            "before_ms": dice.choice((0, 0, 2, 20, 100, 500)),
            "after_ms": dice.choice((0, 0, 2, 20, 100, 500)),
        }
        return ToolCall(tool_name=f"{dice.choice(MODULES)}.{dice.choice(EFFECTS)}", arguments=arguments)

    def _timeout(self) -> float:
        kind = self._dice.random()
        low, high = (0.3, 3.0) if kind < 0.1 else (5.0, 10.0) if kind < 0.6 else (10.0, LONGEST_TIMEOUT_SECONDS)
        return self._dice.uniform(low, high)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = asyncio.create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _run(self, call: ToolCall, caller: Caller, timeout: float, *, after: float = 0) -> ToolResult:
        await asyncio.sleep(after)
        return await self._fleet.call(call, caller, timeout=timeout)

    async def _of_hostile(self, call: ToolCall, timeout: float) -> ToolResult:
        """Without what was answered, which has up to a megabyte; what it did is enough."""
        caller = Caller(user_id="hostile", permission="user", allowed_modules="*")
        result = await self._run(call, caller, timeout)
        if not result.success:
            return result
        return result.model_copy(update={"result": {"execution": result.result["execution"]}})

    async def _many(self, calls: list[ToolCall], caller: Caller, timeout: float) -> None:
        together = asyncio.ensure_future(self._fleet.call_many(calls, caller, timeout=timeout))

        async def one(place: int) -> ToolResult:
            return (await asyncio.shield(together))[place]

        await asyncio.gather(*(self._note("many", call, timeout, one(i)) for i, call in enumerate(calls)))

    async def _handle(self, call: ToolCall, caller: Caller, timeout: float, *, cancel_after: float | None) -> None:
        async def run() -> ToolResult:
            handle = await self._fleet.submit(call, caller, timeout=timeout)
            if cancel_after is not None:
                self._spawn(_cancel(handle, after=cancel_after))  # which may last longer than the call
            first, second = await asyncio.gather(handle.result(), handle.result())
            assert first == second, f"a handle gave two results: {first} {second}"
            return first

        way: Way = "submitted" if cancel_after is None else "cancelled"
        await self._note(way, call, timeout, run())

    async def _give_up(self, call: ToolCall, caller: Caller, timeout: float, *, after: float) -> None:
        async def run() -> ToolResult | None:
            awaiting = asyncio.create_task(self._fleet.call(call, caller, timeout=timeout))
            await asyncio.wait([awaiting], timeout=after)
            awaiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                return await awaiting
            return None

        await self._note("given_up", call, timeout, run())

    async def _note(
        self,
        way: Way,
        call: ToolCall,
        timeout: float,
        run: Coroutine[Any, Any, ToolResult | None],
        delay: float = 0,
    ) -> ToolResult | None:
        """Wait for the call's end, write it down, and return what was told. What it waits for of itself is not the call's time."""
        waits = delay if way in {"keyed", "conflicting"} else 0
        began_at, clock = time.time() + waits, time.monotonic()
        result, error = None, None
        try:
            async with asyncio.timeout(delay + timeout + MARGIN_SECONDS + _HANGS_AFTER):
                result = await run
        except Exception as exc:  # noqa: BLE001 - whatever a call raises is a violation
            error = "hung" if isinstance(exc, TimeoutError) else repr(exc)
        ending = Ending(
            ref=call.arguments["ref"],
            tool=call.tool_name,
            way=way,
            timeout=timeout,
            began_at=began_at,
            seconds=max(time.monotonic() - clock - waits, 0),
            key=call.idempotency_key,
            result=result,
            error=error,
        )
        self._file.write(ending.model_dump_json() + "\n")
        self._file.flush()
        return result


async def _cancel(handle: CallHandle, *, after: float) -> None:
    await asyncio.sleep(after)
    await handle.cancel()


def _caller(dice: random.Random) -> Caller:
    return Caller(user_id=f"user-{dice.randrange(_USERS)}", permission="user", allowed_modules="*")


def endings_of(folder: Path, number: int) -> Path:
    """Where the agent of that number writes its endings."""
    return folder / f"agent-{number}.jsonl"


async def main(number: int, calls: int, within: float, seed: int, folder: Path) -> None:
    async with ToolFleet() as fleet:
        agent = Agent(number, fleet, seed, endings_of(folder, number))
        agent.obey(asyncio.get_running_loop())
        print(READY, flush=True)  # noqa: T201 - for who started us
        await agent.make(calls, within=within)


if __name__ == "__main__":
    own, calls, within, seed = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    asyncio.run(main(own, calls, within, seed, Path(sys.argv[5])))
