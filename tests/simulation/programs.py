"""Runs random programs whose worker dies at every suspension: `python -m simulation.programs [--count N] [--seed N]`.

Each program of 1 to 50 calls is also run by Python itself, against functions in memory: its value there is what it must have
in the fleet, and each of its calls must have been made once. A worker that stores a program's step dies before that has left it, right
after it, or once some of the step's calls are published; one that stores a program's end dies before that or after it. Another
one goes on. Many programs run at once, and those that come to such a point in one worker within a moment die of one death. The caller
hears of the end exactly once: as its answer, or as a wake-up. Every sixth program has calls that people approve.
"""

import argparse
import asyncio
import contextvars
import gc
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, fields
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from bed.fleet import Bed, Worker
    from bed.site import Site
    from toolfleet import Caller
    from toolfleet_registry.contracts.programs import ToolProgram

_AT_ONCE = 120
"""Programs that run at the same time: the death of one's worker is that of others'. A worker takes up fifty that are due."""
_CHUNK = 250
_TOGETHER_SECONDS = 0.3
"""The time that a worker that is to die waits for more programs of it that come to such a point: less than their lease."""
_APPROVED_EACH = 6
_MOST_CALLS = 50
_END = -1  # in place of a step
_LEASE_SECONDS = 3
_WORKERS = 2
_START_SECONDS = 5
_CALL_SECONDS = 600  # of a call: it may have to wait for a worker that lives until it is published
_TAKES_SECONDS = 0.3  # a call at the most: so a step has the ends of some of the calls that wait
_LOOK_SECONDS = 5
_WAKE_SECONDS = 30  # in which a wake-up is delivered, also if the worker that wrote it has died


@dataclass
class Findings:
    """What became of some programs: `answered` told their caller their end, `woken` woke it, and `lost` were never made.

    `struck`: at how many of the suspensions and ends a worker died; deaths are fewer.
    """

    programs: int = 0
    calls: int = 0
    suspensions: int = 0
    ends: int = 0
    struck: int = 0
    deaths: int = 0
    approvals: int = 0
    answered: int = 0
    woken: int = 0
    lost: int = 0
    violations: list[str] = field(default_factory=list)


def source_of(random: Random, name: str, *, approves: bool, most_calls: int = _MOST_CALLS) -> str:
    """Return a random program of 1 to so many calls, all of which have references of their own."""
    lines, calls, wanted = ["import asyncio", "out = [1]"], 0, random.randint(1, most_calls)
    while calls < wanted:
        place, count = f"{name}-{len(lines)}", random.randint(1, min(5, wanted - calls))
        one = f'owls__step(ref=f"{place}-{{k}}", n=out[-1] % 97 + k)'
        match random.choice(["loop", "gather", "nested", "fails", "asked" if approves else "loop", "if"]):
            case "loop":
                lines += [f"for k in range({count}):", f"    out.append(await {one})"]
            case "gather":
                lines += [f"out += await asyncio.gather(*[{one} for k in range({count})])"]
            case "nested":
                count = 2 * count if calls + 2 * count <= wanted else count - count % 2
                lines += [
                    f"async def twice{len(lines)}(k):",
                    f'    first = await owls__step(ref=f"{place}-a{{k}}", n=k)',
                    f'    return first + await owls__step(ref=f"{place}-b{{k}}", n=first)',
                    f"out += await asyncio.gather(*[twice{len(lines)}(k) for k in range({count // 2})])",
                ]
            case "fails":
                count = 1
                lines += ["try:", f'    await owls__refuse(ref="{place}")', "except RuntimeError as exc:"]
                lines += ['    out.append(len(str(exc).partition(":")[0]))']
            case "asked":
                count = 1
                lines += [f'out.append(await owls__asked(ref="{place}", n=out[-1] % 89))']
            case _:
                lines += [
                    f"for k in range({count}):",
                    "    if out[-1] % 2 or k % 2:",
                    f"        out.append(await {one})",
                ]
        calls += count
    return "\n".join([*lines, "return out"])


def answer(method: str, arguments: dict[str, Any]) -> int:
    """Return what a tool of the module returns, or raise its error."""
    if method == "refuse":
        raise RuntimeError(_REFUSAL)
    return int(arguments["n"]) * 31 % 1_009 + (method == "asked")


_REFUSAL = "module_error (effect unknown): I cannot."


async def expected_of(source: str) -> tuple[Any, list[str]]:
    """Return what Python itself makes of a program: its value, and the references of its calls."""
    refs = list[str]()

    async def call(method: str, **arguments: Any) -> int:
        refs.append(arguments["ref"])
        return answer(method, arguments)

    def function(method: str) -> Any:
        return lambda **arguments: call(method, **arguments)

    names = {f"owls__{each}": function(each) for each in ("step", "refuse", "asked")}
    body = "\n".join(f"    {line}" for line in source.splitlines())
    exec(f"async def program():\n{body}", names)  # noqa: S102 - it was made a moment ago
    return await names["program"](), refs


class _Reaper:
    """Has the worker die that stores a step of a program, or its end, at each of these once."""

    def __init__(self, seed: int) -> None:
        from bed import site
        from toolfleet_tasks.programs import ProgramRecords
        from toolfleet_workers.execution.programs import _Course

        self._met, self._struck, self._here = set[tuple[str, int]](), set[tuple[str, int]](), site.here
        self._left = dict[str, tuple[int, int]]()
        """By program, its step, and how many calls of that are published before its worker dies."""
        self._closed = set[tuple[Any, str]]()
        """Workers that publish no more calls of a program."""
        self._doomed = dict["Site", asyncio.Event]()
        """By the worker that is to die, what its programs wait for that came to their points: nothing sets it."""
        self._outside = contextvars.copy_context()
        self.has_killed = asyncio.Event()
        self.deaths = 0
        self._random = Random(f"reaper {seed}")
        self._move, self._end, self._published = ProgramRecords.move, ProgramRecords.end, _Course._published
        ProgramRecords.move = lambda *of, **how: self.move(*of, **how)  # type: ignore[method-assign] # noqa: PLW0108
        ProgramRecords.end = lambda *of: self.end(*of)  # type: ignore[method-assign] # noqa: PLW0108
        _Course._published = lambda *of, **how: self.publish(*of, **how)  # type: ignore[method-assign] # noqa: PLW0108

    async def move(self, records: Any, program: Any, place: Any, **how: Any) -> Any:
        """Implements `ProgramRecords.move`."""
        program_id, step, fate = program.spec.job_id, place.step, ""
        if how.get("state") is not None:
            new = place.calls - program.place.calls
            fate = self._fate(program_id, step, ("before", "after", "published") if new else ("before", "after"))
            self._left.pop(program_id, None)
        if fate == "before":
            await self._dies(program_id, step)
        found = await self._move(records, program, place, **how)
        if fate == "after":
            await self._dies(program_id, step)
        elif fate == "published" and found is not None:
            self._left[program_id] = step, self._random.randint(1, new)
        return found

    async def end(self, records: Any, program: Any, *how: Any) -> Any:
        """Implements `ProgramRecords.end`."""
        program_id = program.spec.job_id
        fate = self._fate(program_id, _END, ("before", "after"))
        if fate == "before":
            await self._dies(program_id, _END)
        found = await self._end(records, program, *how)
        if fate == "after":
            await self._dies(program_id, _END)
        return found

    async def publish(self, course: Any, program: Any, call: Any, **how: Any) -> Any:
        """Implements `_Course._published`."""
        program_id, site = program.spec.job_id, self._here()
        if (site, program_id) in self._closed:
            await self._dies(program_id, program.place.step)
        step, left = self._left.pop(program_id, (0, 0))
        if left > 1:
            self._left[program_id] = step, left - 1
        elif left:  # all are published at once: those that follow are not any more
            self._closed.add((site, program_id))
        found = await self._published(course, program, call, **how)
        if left == 1:
            await self._dies(program_id, step)
        return found

    def note(self, found: Findings) -> None:
        """Note at what it was, and at how much of that a worker died."""
        found.suspensions, found.ends = (
            sum((step == _END) is is_end for _, step in self._met) for is_end in (False, True)
        )
        found.struck, found.deaths = len(self._struck), self.deaths

    def _fate(self, program_id: str, step: int, fates: tuple[str, ...]) -> str:
        self._met.add((program_id, step))
        return "" if (program_id, step) in self._struck else self._random.choice(fates)

    async def _dies(self, program_id: str, step: int) -> None:
        """Go no further: the worker dies whose code this is, before it writes anything more, with others of its programs."""
        site = self._here()
        assert site is not None
        self._struck.add((program_id, step))
        if site not in self._doomed:
            self._doomed[site] = asyncio.Event()
            asyncio.get_running_loop().create_task(self._kill(site), context=self._outside)
        await self._doomed[site].wait()

    async def _kill(self, site: "Site") -> None:
        await asyncio.sleep(_TOGETHER_SECONDS)
        await site.die_at(1, 0.0).wait()
        self.deaths += 1
        self.has_killed.set()


class _Fleet:
    """A fleet with workers that die, and a module that counts."""

    def __init__(self, bed: "Bed", reaper: _Reaper, random: Random) -> None:
        from support.module_server import ModuleServer

        self.bed, self.module, self.made = bed, ModuleServer("owls"), Counter[str]()
        self._reaper, self._random = reaper, random
        self.workers = list["Worker"]()
        self.woken = dict[str, bool]()
        """By its stream, whether a conversation has to be woken: its caller was not told the end."""

    async def open(self) -> None:
        from support.fleet import SIGNING_KEY

        async def execute(request: dict[str, Any]) -> dict[str, Any]:
            self.made[request["arguments"]["ref"]] += 1
            await asyncio.sleep(self._random.random() * _TAKES_SECONDS)
            try:
                return {"success": True, "result": answer(request["tool_name"].partition(".")[2], request["arguments"])}
            except RuntimeError:
                return {"success": False, "error": "I cannot."}

        kinds = {"ref": "string", "n": "integer"}
        names = [{"name": name, "type": kind, "description": "", "required": False} for name, kind in kinds.items()]
        for method in ("step", "refuse"):
            self.module.add(method, execute, effect="once", timeout_seconds=_CALL_SECONDS, parameters=names)
        self.module.add("asked", execute, effect="once", approval=True, timeout_seconds=_CALL_SECONDS, parameters=names)
        self.bed.given |= {"programs": True, "signing_key": SIGNING_KEY, "visibility_timeout": _LEASE_SECONDS}
        self.bed.given["slow_modules"] = {"programs"}
        await self.bed.serve(self.module)
        # Calls that run are not killed: their outcomes would be unknown.
        with mock.patch("toolfleet_workers.worker_app.find_spec", return_value=None):
            await self.bed.worker(lane="fast")
        self.workers = [await self._worker() for _ in range(_WORKERS)]
        await self.bed.beat()
        self.fleet = await self.bed.agent()
        self._tasks = [asyncio.create_task(each) for each in (self._replace(), self._approve())]

    async def _worker(self) -> "Worker":
        while True:
            with suppress(TimeoutError):  # it may die while it starts: then it is never ready
                async with asyncio.timeout(_START_SECONDS):
                    return await self.bed.worker(lane="slow")

    async def _replace(self) -> None:
        while True:
            await self._reaper.has_killed.wait()
            self._reaper.has_killed.clear()
            for place, worker in enumerate(self.workers):
                if worker.site.is_dead:
                    self.workers[place] = await self._worker()

    async def _approve(self) -> None:
        from toolfleet import ApprovalNotTaken, Approver, FleetUnavailable

        boss = Approver("command line", "boss", "admin")
        while True:
            for each in await self.fleet.approvals.list():
                if each.state != "waiting":
                    continue
                ref = str((await self.fleet.approvals.show(each.approval_id)).request.arguments["ref"])
                if self.made[ref]:
                    self.made[f"{ref} unapproved"] += 2
                try:
                    await self.fleet.approvals.approve(each.approval_id, boss)
                except (ApprovalNotTaken, FleetUnavailable):
                    continue
            await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        """End what it does by itself, when all conversations are woken that have to be."""
        await asyncio.sleep(_WAKE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


async def _run(fleet: _Fleet, found: Findings, seed: int, number: int) -> None:
    from toolfleet import Caller, Conversation, ToolCall

    random, name = Random(f"{seed} {number}"), f"p{number}"
    approves = number % _APPROVED_EACH == 0
    source = source_of(random, name, approves=approves)
    value, refs = await expected_of(source)
    caller = Caller(user_id=f"user-{number}", permission="owner", allowed_modules="*")
    call = ToolCall(tool_name="programs.run", arguments={"source": source}, idempotency_key=name)
    talk = Conversation(conversation_id=name, platform="chat")
    result = await fleet.fleet.call(call, caller, conversation=talk, timeout=600)
    found.programs, found.calls = found.programs + 1, found.calls + len(refs)
    found.approvals += "owls__asked" in source
    told: Any = result.result if result.success else result
    program, is_woken = await _ended(fleet, caller), False
    if program is None:
        found.lost += 1
        if result.success or result.effect_state == "done" or any(fleet.made[each] for each in refs):
            found.violations.append(f"{name}: no program, told {told!r}, made {[fleet.made[each] for each in refs]}")
        return
    if isinstance(told, dict) or result.error_code == "outcome_unknown":  # it waited, or nobody knew
        is_woken, told = True, program.result if program.state == "completed" else program.error
    found.answered, found.woken = found.answered + (not is_woken), found.woken + is_woken
    if told != value:
        found.violations.append(f"{name}: {told!r} in place of {value!r} of\n{source}")
    if wrong := {each: fleet.made[each] for each in refs if fleet.made[each] != 1}:
        found.violations.append(f"{name}: made {wrong}")
    if [each for each in fleet.made if each.endswith("unapproved")]:
        found.violations.append(f"{name}: made before it was approved")
    fleet.woken[fleet.bed.settings.keys.completions_of(name, caller.user_id)] = is_woken


async def _ended(fleet: _Fleet, caller: "Caller") -> "ToolProgram | None":
    """Return a caller's program when it has ended."""
    listed = await fleet.fleet.programs.list(caller)
    program = await fleet.fleet.programs.get(listed[0].program_id, caller) if listed else None
    while program is not None and program.state == "waiting":
        await asyncio.sleep(_LOOK_SECONDS)
        program = await fleet.fleet.programs.get(program.program_id, caller)
    return program


async def play(bed: "Bed", seed: int, numbers: range) -> Findings:
    """Run these programs, some at once, in a bed."""
    found, reaper = Findings(), _Reaper(seed)
    fleet = _Fleet(bed, reaper, Random(f"module {seed} {numbers.start}"))
    await fleet.open()
    waiting = iter(numbers)

    async def one_after_the_other() -> None:
        for number in waiting:
            try:
                async with asyncio.timeout(86_400):
                    await _run(fleet, found, seed, number)
            except Exception as exc:  # noqa: BLE001 - whatever it is: the next program may say more
                found.violations.append(f"p{number}: no end: {exc!r}")

    await asyncio.gather(*(one_after_the_other() for _ in range(_AT_ONCE)))
    await fleet.close()
    wakes = {stream: bed.ask("XLEN", stream) for stream in fleet.woken}
    found.violations += [
        f"{each}: woken {n} times, not {fleet.woken[each]:d}" for each, n in wakes.items() if n != fleet.woken[each]
    ]
    reaper.note(found)
    return found


def play_here(seed: int, numbers: range) -> Findings:
    """Run these programs in this process, which runs in virtual time from then on."""
    import bed.replaced
    from bed.fleet import open_bed
    from bed.loop import VirtualLoop
    from simulation.kill_points import _own_redis

    gc.disable()  # what is dead stays in memory, and is not to be looked through again and again
    redis = _own_redis()
    bed.replaced.seed(seed + numbers.start)
    loop = VirtualLoop(Random(f"order {seed}"))

    async def run() -> Findings:
        async with open_bed(redis) as opened:
            return await play(opened, seed, numbers)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m simulation.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began_at, total = time.monotonic(), Findings()
    end = options.first + options.count
    chunks = [range(first, min(first + _CHUNK, end)) for first in range(options.first, end, _CHUNK)]
    with ProcessPoolExecutor(options.processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        for each in as_completed([pool.submit(play_here, options.seed, chunk) for chunk in chunks]):
            found = each.result()
            for each_field in fields(Findings):
                setattr(total, each_field.name, getattr(total, each_field.name) + getattr(found, each_field.name))
            _say(f"{total.programs} programs, {total.deaths} deaths, {len(total.violations)} violations")
            for violation in found.violations[:5]:
                _say(f"  {violation}")
    _say(
        f"{total.programs} programs of {total.calls} calls, {total.approvals} with approvals, {total.suspensions} suspensions,"
        f" and {total.ends} ends, {total.struck} of these struck by {total.deaths} deaths; {total.answered} answered, {total.woken} woken, {total.lost} never made;"
        f" {len(total.violations)} violations with the seed {options.seed} in {time.monotonic() - began_at:.0f} s"
    )
    sys.exit(bool(total.violations))


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
