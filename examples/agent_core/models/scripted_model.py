"""A model without a model: rules over the last message. Always the same, and without a network.

It plays what a real one does with the instructions of the core: builds a site in the background, is woken, deploys it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from agent_core.models.model import Answer
from agent_core.wording import facts_of
from toolfleet import ToolCall, ToolDefinition
from toolfleet.formats import convert

Wish = tuple[str, dict[str, Any]]
"""A tool's name and the arguments for it."""

Rule = Callable[[Any], Wish | str]
"""What it says to the result of a tool: a call, or words."""

POLL_SECONDS = 1
"""Short: its user looks on."""


class ScriptedModel:
    """Answers by what the last message is: a user's words, a tool's result, or the news of a job's end."""

    async def answer(self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolDefinition]) -> Answer:
        """The next message. Calls only what it was offered, as a real one would."""
        said = _next(messages)
        if isinstance(said, str):
            return Answer({"role": "assistant", "content": said})
        name, arguments = said
        offered = _offered_names(tools)
        if name not in offered:
            return Answer({"role": "assistant", "content": f"I would need the tool {name}, and was not offered it."})
        call_id = f"call_{len(messages)}"
        function = {"name": offered[name], "arguments": json.dumps(arguments)}
        asked = {"id": call_id, "type": "function", "function": function}
        body = {"role": "assistant", "content": None, "tool_calls": [asked]}
        return Answer(body, (ToolCall(tool_name=name, arguments=arguments),))


def _next(messages: Sequence[dict[str, Any]]) -> Wish | str:
    last = messages[-1]
    text = str(last.get("content") or "")
    if last["role"] == "tool":
        return _after_tool(_called(messages), text)
    facts = facts_of(last)
    return _after_job(facts) if facts is not None else _after_user(text)


def _after_user(text: str) -> Wish | str:
    words = text.lower()
    if "build" in words:
        return "claude_code.run_task", {"prompt": text}
    if "files" in words:
        return "file_manager.list_files", {}
    return "I can build a site for you, and deploy it."


def _after_tool(called: str, text: str) -> Wish | str:
    if text.startswith("Error: "):
        return f"That did not work: {text.removeprefix('Error: ').splitlines()[0]}"
    rule = _RULES.get(called)
    return rule(json.loads(text)) if rule else f"{called} says: {text}"


def _after_run_task(result: Any) -> Wish:
    poll = {
        "tool_name": "claude_code.task_status",
        "arguments": {"task_id": result["task_id"]},
        "interval_seconds": POLL_SECONDS,
    }
    return "scheduler.add_job", {**poll, "name": "the site", "on_complete": "resume_conversation"}


def _after_add_job(_result: Any) -> str:
    return "I have begun to build it, and will deploy it once it is ready. You need not wait."


def _after_deploy(result: Any) -> str:
    return f"Your site is ready: {result['url']}"


def _after_list_files(result: Any) -> str:
    names = ", ".join(file["name"] for file in result["files"])
    return f"You have these files: {names}." if names else "You have no files."


def _after_job(facts: dict[str, Any]) -> Wish | str:
    result = facts.get("result")
    if facts["type"] == "job.completed" and isinstance(result, dict) and "workspace" in result:
        return "deployer.deploy", {"project_path": result["workspace"]}
    return f"It could not be built: {facts.get('error') or facts['type']}"


def _called(messages: Sequence[dict[str, Any]]) -> str:
    """The tool whose result the last message is, by its own name."""
    wanted = messages[-1]["tool_call_id"]
    calls = (call for message in reversed(messages) for call in message.get("tool_calls") or [])
    name = next(str(call["function"]["name"]) for call in calls if call["id"] == wanted)
    return next((own for own in _RULES if _offered_name(own) == name), name)


def _offered_names(tools: Sequence[ToolDefinition]) -> dict[str, str]:
    return {tool.name: _offered_name(tool.name) for tool in tools}


def _offered_name(name: str) -> str:
    """As `convert` shows it to a model: without dots."""
    (offer,) = convert([ToolDefinition(name=name)], "openai_chat")
    return str(offer["function"]["name"])


_RULES: dict[str, Rule] = {
    "claude_code.run_task": _after_run_task,
    "scheduler.add_job": _after_add_job,
    "deployer.deploy": _after_deploy,
    "file_manager.list_files": _after_list_files,
}
