"""The main job on real input: a scripted agent's tool calls, through the queue to real modules and back.

`toolfleet demo` starts a fleet and plays this on it. An agent of your own looks like `Agent.turn` below: offer the tools,
let the model answer with tool calls, run them, hand the results back.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from toolfleet import Caller, Settings, ToolCall, ToolDefinition, ToolFleet, ToolResult
from toolfleet.formats import call_from_openai

ANALYST = Caller(
    user_id="ada",
    permission="user",
    allowed_modules=frozenset({"file_manager", "code_executor", "research", "report_builder"}),
)
OTHER = Caller(user_id="bob", permission="user", allowed_modules=ANALYST.allowed_modules)
SALES = [(day, 3 + day * 7 % 5, 19.5 + day % 3) for day in range(1, 29)]
TOTAL = sum(owls * price for _, owls, price in SALES)
ROWS = [["day", "owls", "price"], *(list(row) for row in SALES)]
COMPUTE = """
import csv
with open("sales.csv", newline="") as file:
    rows = list(csv.DictReader(file))
print(sum(int(row["owls"]) * float(row["price"]) for row in rows))
"""
SAVE = """
import time
try:
    file = open("/tmp/plan.txt", "w")
except OSError:  # where programs cannot have a /tmp of their own
    file = open("output/plan.txt", "w")
with file:
    file.write("Owls at midnight.")
time.sleep(0.3)
"""
LOOK = """
import glob, time
seen = set()
for _ in range(30):
    seen.update(glob.glob("/tmp/plan*"))
    time.sleep(0.01)
print(sorted(seen))
"""
SLOW_SECONDS = 4


@dataclass
class Agent:
    """Runs what a model asks for. The model here is a script: it answers in OpenAI's form, as a real one would."""

    fleet: ToolFleet
    tools: list[ToolDefinition]
    history: list[ToolResult] = field(default_factory=list)

    async def turn(self, *wishes: tuple[str, dict[str, Any]], caller: Caller = ANALYST) -> list[ToolResult]:
        """One answer of the model with its tool calls, run side by side."""
        calls = [call_from_openai(_tool_call(self.tools, *wish), self.tools) for wish in wishes]
        return await self.run(calls, caller)

    async def run(self, calls: list[ToolCall], caller: Caller = ANALYST) -> list[ToolResult]:
        """Run calls side by side, and keep what came of them."""
        # The demo kills workers, and a slow machine takes its time to start them again.
        results = await self.fleet.call_many(calls, caller, waits_for_worker=True)
        self.history.extend(results)
        return results


async def play(settings: Settings, console: Console) -> bool:
    """Play the whole script; whether everything went as it should."""
    async with ToolFleet(settings=settings) as fleet:
        await (
            fleet.modules.refresh()
        )  # they have just started, and the fleet's first look may have come too early for some
        agent = Agent(fleet, await fleet.tools(ANALYST))
        offered = fleet.tools_to_openai_format(agent.tools)
        console.print(f"The model is offered {len(offered)} tools, in OpenAI's format:")
        console.print("  " + ", ".join(tool["function"]["name"] for tool in offered))
        failed = [act for act in _ACTS if not await act(agent, console)]
    # As wide as it must be: no name is cut, also in a log.
    Console(file=console.file, width=max(console.width, _TABLE_WIDTH)).print(_table(agent.history))
    for act in failed:
        console.print(f"Not as it should be: {act.__doc__}")
    return not failed


async def _work(agent: Agent, console: Console) -> bool:
    """A file is written by one module and computed on by another."""
    (written,) = await agent.turn(("file_manager.create_document", {"name": "sales.csv", "rows": ROWS}))
    (computed,) = await agent.turn(("code_executor.run_python", {"code": COMPUTE, "files": ["sales.csv"]}))
    (found,) = await agent.turn(("research.search_docs", {"query": "retry after a timeout", "max_results": 1}))
    answer = computed.result["stdout"].strip() if computed.success else str(computed.error)
    console.print(f"\nSales of {len(SALES)} days, written to a CSV file and added up by run_python: {answer}")
    console.print(f"The documentation on 'retry after a timeout': {_best(found)}")
    return written.success and found.success and computed.success and float(answer) == TOTAL


async def _private(agent: Agent, console: Console) -> bool:
    """A file that a program saved to /tmp comes back to its user, and to nobody else."""
    (saved,), (looked,) = await asyncio.gather(
        agent.turn(("code_executor.run_python", {"code": SAVE})),
        agent.turn(("code_executor.run_python", {"code": LOOK}), caller=OTHER),
    )
    wish = ("file_manager.read_document", {"name": "plan.txt"})
    (own,), (others,) = await asyncio.gather(agent.turn(wish), agent.turn(wish, caller=OTHER))
    seen = looked.result["stdout"].strip() if looked.success else str(looked.error)
    console.print(f"\nA program of ada's saved /tmp/plan.txt: {own.result['content'] if own.success else own.error}")
    console.print(f"What a program of bob's saw of it at the same time: {seen}. His own files: {others.error}")
    return saved.success and own.success and seen == "[]" and others.error_code == "module_error"


async def _side_by_side(agent: Agent, console: Console) -> bool:
    """Ten calls of one answer run at the same time."""
    started_at = time.monotonic()
    words = ("queue", "lane", "manifest", "permission", "redis", "retry", "module", "caller")
    results = await agent.turn(
        *(("research.search_docs", {"query": word}) for word in words),
        ("file_manager.list_files", {}),
        ("file_manager.read_document", {"name": "sales.csv"}),
    )
    console.print(f"\n{len(results)} calls side by side took {time.monotonic() - started_at:.2f} s together.")
    return all(result.success for result in results)


async def _slow_and_fast(agent: Agent, console: Console) -> bool:
    """A slow call waits in a lane of its own."""
    slow = asyncio.create_task(
        agent.turn(("report_builder.build_report", {"title": "Owls", "seconds": SLOW_SECONDS})), name="slow"
    )
    started_at = time.monotonic()
    (fast,) = await agent.turn(("research.search_docs", {"query": "slow lane"}))
    took, still_running = time.monotonic() - started_at, not slow.done()
    (report,) = await slow
    console.print(f"\nA fast call took {took:.2f} s while a report of {SLOW_SECONDS} s was being built.")
    return fast.success and still_running and report.success


async def _time_out(agent: Agent, console: Console) -> bool:
    """A tool that misses its limit is stopped, tried once more as it only reads, and reported."""
    (late,) = await agent.turn(("report_builder.quick_report", {"title": "Too much", "seconds": 60}))
    console.print(f"\nA tool that misses its limit: {late.error}")
    return late.error_code == "timed_out"


async def _refused(agent: Agent, console: Console) -> bool:
    """What a caller may not do, or a model made up, is refused at once and never published."""
    guest = Caller(user_id="eve", permission="guest")
    denied = await agent.run([ToolCall(tool_name="code_executor.run_python", arguments={"code": "1"})], guest)
    nonsense = await agent.run(
        [ToolCall(tool_name="make me rich"), ToolCall(tool_name="research.search_docs", arguments=[])]
    )
    console.print("\nRefused, and nothing was published:")
    for result in (*denied, *nonsense):
        console.print(f"  {result.error_code}: {result.error}")
    return [result.error_code for result in (*denied, *nonsense)] == [
        "permission_denied",
        "invalid_tool_name",
        "invalid_arguments",
    ]


def _tool_call(tools: list[ToolDefinition], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A model's answer: it knows a tool by the name that it was offered under."""
    offered = {
        tool.name: form["function"]["name"]
        for tool, form in zip(tools, ToolFleet.tools_to_openai_format(tools), strict=True)
    }
    return {"id": "call_1", "type": "function", "function": {"name": offered[name], "arguments": json.dumps(arguments)}}


def _table(history: list[ToolResult]) -> Table:
    table = Table(title="\nWhat happened", title_justify="left")
    for column in ("tool", "queue", "outcome"):
        table.add_column(column, no_wrap=True)
    for column in ("queued ms", "run ms", "attempts"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in history:
        table.add_row(*_row(result))
    return table


def _row(result: ToolResult) -> list[str]:
    audit = result.audit
    outcome = "success" if result.success else str(result.error_code)
    if not audit.attempts:
        return [result.tool_name, "-", outcome, "-", "-", "0"]
    queue = f"tools.{result.tool_name.partition('.')[0]}"
    return [result.tool_name, queue, outcome, f"{audit.queued_ms:.0f}", f"{audit.duration_ms:.0f}", str(audit.attempts)]


def _best(found: ToolResult) -> str:
    if not found.success:
        return str(found.error)
    passage = found.result["results"][0]
    return f"{passage['path']}, line {passage['line']}, '{passage['heading']}'"


_ACTS = (_work, _private, _side_by_side, _slow_and_fast, _time_out, _refused)
_TABLE_WIDTH = 110
