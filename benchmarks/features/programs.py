"""Measures the cost of a program's step, and the bytes that a task of 20 calls puts into a model's context: `python -m benchmarks programs`.

One worker, a module that answers at once, and the Redis of `toolfleet up`, all on this machine. A program of many calls, one after
the other, is run beside as many plain calls of an agent, one after the other: what it takes longer for each of its calls is
the step: reading the end of the call, loading and resuming the program, sealing, storing, publishing the next call. Fails
if that is more than it may be. Nothing of a model is measured: what would enter its context is counted, in bytes of JSON
and, where the package `tiktoken` is installed, in tokens of `cl100k_base`.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.features.jobs import Fleet, running_fleet
from toolfleet import Caller, Settings, ToolCall, ToolFleet
from toolfleet_registry.contracts.names import RUN_PROGRAM
from toolfleet_registry.local.program_tools import probe_programs
from toolfleet_workers.execution.interpreter import Finished, Interpreter, Returned, Suspended

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
                call = ToolCall(tool_name="work.status", arguments={"due_at": each})
                assert (await client.call(call, _CALLER)).success
            plain_at = time.perf_counter()
            result = await client.call(ToolCall(tool_name=RUN_PROGRAM, arguments={"source": _LOOP}), _CALLER)
            ended_at = time.perf_counter()
            assert result.result == _CALLS_EACH - 1, result
            if number:  # the first has warmed up
                plain.append(1000 * (plain_at - began_at) / _CALLS_EACH)
                inside.append(1000 * (ended_at - plain_at) / _CALLS_EACH)
    return plain, inside


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
    tool = probe_programs(Settings(programs=True, signing_key=_KEY))["programs"].tools[0]
    program = [
        tool.model_dump(include={"name", "description", "input_schema"}),
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
    beyond = [both - alone for alone, both in zip(plain, inside, strict=True)]
    median = statistics.median(beyond)
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
            for name, found in (("by an agent", plain), ("by a program", inside), ("a step beyond its call", beyond))
        ),
        f"\nA step may cost {_MOST_MS:g} ms beyond its call. {part}\n",
        f"A task of {_CALLS} calls, as it enters a model's context (definitions of the tools themselves left out):\n",
        "| | bytes | tokens (`cl100k_base`) |",
        "|---|---:|---:|",
        f"| {_CALLS} calls | {len(before):,} | {_tokens(before)} |",
        f"| one program, its tool's definition, its end | {len(after):,} | {_tokens(after)} |",
    ]
    text = "\n".join(lines)
    print(text)
    (Path(__file__).parents[1] / "results" / "programs.md").write_text(text + "\n")
    if median > _MOST_MS:
        sys.exit(1)


if __name__ == "__main__":
    main()
