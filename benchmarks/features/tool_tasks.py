"""Measures what whole tasks cost a real model, with all definitions and with tools on demand: `python -m benchmarks tool_tasks anthropic MODEL`.

A task is the title of an example of botocore, and done when the model has called the operation that the example shows. The
tools do nothing: each answers that it is done. Tokens are those that the provider bills. It needs the provider's key in
`ANTHROPIC_API_KEY` or `OPENAI_API_KEY`, and costs money: some ten million tokens with the usual numbers.
"""

import argparse
import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai

from benchmarks.features.tool_search import Question, botocore_tools, seen, wheels
from toolfleet_registry.catalog.catalog import ToolSearch
from toolfleet_registry.contracts import ToolDefinition, ToolResult
from toolfleet_registry.formats import ToolsOnDemand

_SEED = 20261130
_MOST_TURNS = 12
_PROMPT = "Do this with the tools, without questions; where something is not said, invent it: "
Provider = Literal["anthropic", "openai_responses"]
Answer = Callable[[Any], dict[str, Any]]


@dataclass
class Task:
    """The cost of one task. `is_done`: the right tool was called."""

    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    is_done: bool = False


def main() -> None:
    """Run the tasks in both ways, and write the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("provider", choices=("anthropic", "openai_responses"))
    options.add_argument("model")
    options.add_argument("--tools", type=int, default=400)
    options.add_argument("--tasks", type=int, default=20)
    chosen = options.parse_args()
    every, questions = botocore_tools(wheels()["botocore"])
    chance = random.Random(_SEED)
    asked = chance.sample(questions, chosen.tasks)
    needed = {question.tool for question in asked}
    others = chance.sample([tool for tool in every if tool.name not in needed], max(chosen.tools - len(needed), 0))
    tools = [*(tool for tool in every if tool.name in needed), *others]
    lines = [
        f"{chosen.tasks} tasks with {len(tools)} tools, {chosen.model}; the sums of what the provider has counted.\n",
        "| tools | done | turns | input tokens | output tokens |",
        "|---|---:|---:|---:|---:|",
    ]
    for way, is_shown in (("all definitions", True), ("on demand", False)):
        tasks = asyncio.run(_run(chosen.provider, chosen.model, tools, asked, is_shown=is_shown))
        sums = [sum(getattr(task, name) for task in tasks) for name in ("turns", "input_tokens", "output_tokens")]
        lines.append(f"| {way} | {sum(task.is_done for task in tasks)} | {' | '.join(f'{each:,}' for each in sums)} |")
    text = "\n".join(lines)
    print(text)
    (Path(__file__).parents[1] / "results" / "tool_tasks.md").write_text(text + "\n")


async def _run(
    provider: Provider, model: str, tools: Sequence[ToolDefinition], asked: Sequence[Question], *, is_shown: bool
) -> list[Task]:
    offered = ToolsOnDemand(tools, provider, always=lambda _: is_shown)
    index = ToolSearch(seen(tools))
    turns = _anthropic_turns if provider == "anthropic" else _openai_turns
    client: Any = anthropic.AsyncAnthropic() if provider == "anthropic" else openai.AsyncOpenAI()
    tasks = list[Task]()
    for question in asked:
        task = Task()

        def answer(call: Any, task: Task = task, question: Question = question) -> dict[str, Any]:
            search = offered.search(call)
            if search is not None:
                found = index.find(search.query, may=lambda _: True, limit=search.limit)
                return dict(offered.answer(call, [each.definition for each in found]))
            name = offered.call(call).tool_name
            task.is_done = task.is_done or name == question.tool
            return dict(offered.answer(call, ToolResult.ok(name, {"done": True})))

        await turns(client, model, offered, f"{_PROMPT}{question.text} ({question.service})", task, answer)
        tasks.append(task)
    return tasks


async def _anthropic_turns(
    client: Any, model: str, offered: ToolsOnDemand, text: str, task: Task, answer: Answer
) -> None:
    messages: list[Any] = [{"role": "user", "content": text}]
    for _ in range(_MOST_TURNS):
        reply = await client.messages.create(model=model, max_tokens=2000, messages=messages, tools=offered.offers)
        task.turns += 1
        usage = reply.usage
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        task.input_tokens += usage.input_tokens + cached
        task.output_tokens += usage.output_tokens
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return
        messages.append({"role": "assistant", "content": reply.content})
        messages.append({"role": "user", "content": [answer(call) for call in calls]})


async def _openai_turns(client: Any, model: str, offered: ToolsOnDemand, text: str, task: Task, answer: Answer) -> None:
    items: list[Any] = [{"role": "user", "content": text}]
    for _ in range(_MOST_TURNS):
        reply = await client.responses.create(model=model, input=items, tools=offered.offers, store=False)
        task.turns += 1
        task.input_tokens += reply.usage.input_tokens
        task.output_tokens += reply.usage.output_tokens
        calls = [item for item in reply.output if item.type in {"function_call", "tool_search_call"}]
        if not calls:
            return
        items += [*reply.output, *map(answer, calls)]


if __name__ == "__main__":
    main()
