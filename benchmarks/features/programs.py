"""Measures the cost of a program's step, and the bytes that a task of 20 calls puts into a model's context: `python -m benchmarks programs`.

One worker, a module that answers at once, and the Redis of `toolfleet up`, which writes to its disk before it answers, all on
this machine. A program of many calls, one after the other, is run beside as many plain calls of an agent, one after the other:
what it takes longer for each of its calls is all that a program adds to a call. Then the parts of a step are taken one by one in
this process: loading a program, resuming, sealing and storing it. Fails if these are more than they may be. Nothing of a model
is measured: what would enter its context is counted, in bytes of JSON and, where the package `tiktoken` is installed, in tokens
of `cl100k_base`.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from redis.asyncio import Redis

from benchmarks.features.jobs import Fleet, running_fleet
from toolfleet import Caller, Conversation, Settings, ToolCall, ToolFleet
from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.contracts.names import RUN_PROGRAM
from toolfleet_registry.contracts.programs import ProgramCall
from toolfleet_registry.local.program_tools import probe_programs
from toolfleet_tasks.client.session import worker_session
from toolfleet_tasks.programs import ProgramPosition, WaitingCall, state_of
from toolfleet_workers.execution.interpreter import Finished, Interpreter, Returned, Suspended, format_of

T = TypeVar("T")

_CALLS_EACH, _ROUNDS = 90, 15
_STEPS, _CALLS, _ROWS = 300, 20, 12
_MOST_MS = 3.0  # of a step, beyond the call itself
_KEY = "a secret of more than thirty-two characters"
_CALLER = Caller(user_id="ada", permission="owner", allowed_modules="*")
_LOOP = f"for n in range({_CALLS_EACH}):\n    await work__status(due_at=n)\nreturn n"
_LONG_LOOP = f"out = []\nfor n in range({_STEPS}):\n    out.append(await crm__read(id=n))\nreturn len(out)"
_TASK = """
ids = [row["id"] for row in await crm__list(limit=19)]
late = []
for each in ids:
    order = await crm__read(id=each)
    if order["status"] == "late":
        late.append(each)
return {"late": late}
"""


async def _rounds(fleet: Fleet) -> tuple[list[float], list[float]]:
    """Return how many ms a call took in each round: made by an agent, and by a program."""
    plain, inside = list[float](), list[float]()
    async with ToolFleet(settings=fleet.settings) as client:
        await client.modules.refresh()
        for number in range(_ROUNDS + 1):
            began_at = time.perf_counter()
            for each in range(_CALLS_EACH):
                key = f"{number}-{each}"  # as a program's call has one
                call = ToolCall(tool_name="work.status", arguments={"due_at": each}, idempotency_key=key)
                assert (await client.call(call, _CALLER)).success
            plain_at = time.perf_counter()
            result = await client.call(ToolCall(tool_name=RUN_PROGRAM, arguments={"source": _LOOP}), _CALLER)
            ended_at = time.perf_counter()
            assert result.result == _CALLS_EACH - 1, result
            if number:  # the first has warmed up
                plain.append(1000 * (plain_at - began_at) / _CALLS_EACH)
                inside.append(1000 * (ended_at - plain_at) / _CALLS_EACH)
    return plain, inside


async def _parts(settings: Settings) -> dict[str, float]:
    """Return the median of the ms that each part of a step takes, of a program that is `_LOOP`."""
    took, interpreter, call = dict[str, list[float]](), Interpreter(), "work.status"
    functions = {"work__status": call}.get

    async def timed(part: str, doing: Awaitable[T]) -> T:
        began_at = time.perf_counter()
        done = await doing
        took.setdefault(part, []).append(1000 * (time.perf_counter() - began_at))
        return done

    async with worker_session(settings) as session, Redis.from_url(str(settings.redis_url)) as redis:
        records, now = session.programs.records, time.time()
        start = ToolCall(tool_name=RUN_PROGRAM, arguments={"source": _LOOP})
        spec = JobSpec(
            job_id="program-parts",
            caller=_CALLER,
            user_id=_CALLER.user_id,
            conversation=Conversation(),
            start=start,
            created_at=now,
            deadline_at=now + 3600,
        )
        program = await records.create(spec, ProgramPosition(state="waiting", step=0, due_at=now + 60), limit=9)
        assert not isinstance(program, int)
        step = await interpreter.begin(_LOOP, program_id=spec.job_id, created_at=now, functions=functions)
        made = list[ProgramCall]()
        while isinstance(step, Suspended):
            number, called = len(made) + 1, step.calls[0]
            made.append(ProgramCall(number=number, tool_name=call, call_id=program.call_id(number), state="waiting"))
            place = program.place.model_copy(update={"step": number, "waits": (number,), "calls": number})
            waiting = WaitingCall(
                number=number, monty_id=called.monty_id, tool_name=call, arguments=called.arguments, until=now
            )
            snapshot = b64encode(step.snapshot).decode()
            stored = state_of(program, number, (format_of(step.snapshot), snapshot), [waiting], made)
            moved = await timed("seal and store", records.move(program, place, due_at=now + 60, state=stored))
            assert moved is not None
            read = await timed("read", records.read(spec.job_id))
            assert read is not None
            opened = await timed("open", records.state(read))
            assert opened == stored
            await timed("SET of as much", redis.set("as-much", "x" * len(snapshot)))
            replies = {called.monty_id: Returned({"late_by": 0.0})}
            step = await timed("resume", interpreter.resume(step.snapshot, replies, functions=functions))
            program = moved
    return {part: statistics.median(each) for part, each in took.items()}


async def _played(source: str, answer: Callable[[str, dict[str, Any]], Any]) -> tuple[list[Any], Any, list[float]]:
    """Run a program in this process: return its calls with their results, its value, and how many ms each step took."""
    interpreter, made, took = Interpreter(), list[Any](), list[float]()
    functions = {"crm__read": "crm.read", "crm__list": "crm.list"}.get
    step = await interpreter.begin(source, program_id="p", created_at=1.8e9, functions=functions)
    while isinstance(step, Suspended):
        replies = {each.monty_id: Returned(answer(each.tool_name, each.arguments)) for each in step.calls}
        for call in step.calls:
            made += [{"call": call.tool_name, "arguments": call.arguments}, {"result": replies[call.monty_id].value}]
        began_at = time.perf_counter()
        step = await interpreter.resume(step.snapshot, replies, functions=functions)
        took.append(1000 * (time.perf_counter() - began_at))
    assert isinstance(step, Finished), step
    return made, step.value, took


def _answer(tool_name: str, arguments: dict[str, Any]) -> Any:
    """Return what the tools of the task return: a list, and an order with some lines."""
    if tool_name == "crm.list":
        return [{"id": number} for number in range(arguments["limit"])]
    number, article = arguments["id"], {"price": 19.5, "note": "barn owl, ringed"}
    lines = [{"article": f"owl {line}", "count": line, **article} for line in range(_ROWS)]
    status = "late" if number % 5 == 0 else "sent"
    return {"id": number, "status": status, "customer": f"customer {number}", "lines": lines}


async def _context() -> tuple[str, str]:
    """Return what enters a model's context of the same task: with 20 calls of its own, and with one program."""
    made, value, _ = await _played(_TASK, _answer)
    assert len(made) == 2 * _CALLS
    tools = probe_programs(Settings(programs=True, signing_key=_KEY))["programs"].tools
    program = [
        *(tool.model_dump(include={"name", "description", "input_schema"}) for tool in tools),
        {"call": RUN_PROGRAM, "arguments": {"source": _TASK.strip()}},
        {"result": value},
    ]
    return json.dumps([*made, {"answer": value}]), json.dumps(program)


def _tokens(text: str) -> str:
    try:
        import tiktoken  # type: ignore[import-not-found] # where it is installed
    except ImportError:
        return "not measured"
    return f"{len(tiktoken.get_encoding('cl100k_base').encode(text)):,}"


def main() -> None:
    """Measure, print, and fail if a step costs too much."""
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder), programs=True, signing_key=_KEY) as fleet:
        plain, inside = asyncio.run(_rounds(fleet))
        parts = asyncio.run(_parts(fleet.settings))
    beyond = [both - alone for alone, both in zip(plain, inside, strict=True)]
    step = sum(parts[part] for part in ("resume", "seal and store"))
    *_, steps = asyncio.run(_played(_LONG_LOOP, lambda *_: {"rows": [1, 2, 3]}))
    before, after = asyncio.run(_context())
    high = sorted(steps)[int(0.99 * len(steps))]
    part = f"The interpreter's part, with a state that grows over {_STEPS} calls: median {statistics.median(steps):.2f} ms, "
    part += f"99 of 100 below {high:.2f} ms."
    lines = [
        f"Calls one after the other, {_CALLS_EACH} in each of {_ROUNDS} rounds; a worker, Redis and module on one machine:\n",
        "| | ms a call, median | least | most |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |"
            for name, found in (("by an agent", plain), ("by a program", inside), ("beyond a plain call", beyond))
        ),
        "\nThe parts of a step, in a process of its own:\n",
        "| | ms, median |",
        "|---|---:|",
        *(f"| {part} | {found:.2f} |" for part, found in parts.items()),
        f"| a step of the worker that has stored the one before: it has the program at hand | {step:.2f} |",
        f"| a step of another worker, which reads and opens it | {step + parts['read'] + parts['open']:.2f} |",
        f"\nThe first of these two may be {_MOST_MS:g} ms. {part}\n",
        f"A task of {_CALLS} calls, as it enters a model's context (definitions of the tools themselves left out):\n",
        "| | bytes | tokens (`cl100k_base`) |",
        "|---|---:|---:|",
        f"| {_CALLS} calls | {len(before):,} | {_tokens(before)} |",
        f"| one program, its two tools' definitions, its end | {len(after):,} | {_tokens(after)} |",
    ]
    text = "\n".join(lines)
    print(text)
    (Path(__file__).parents[1] / "results" / "programs.md").write_text(text + "\n")
    if step > _MOST_MS:
        sys.exit(1)


if __name__ == "__main__":
    main()
