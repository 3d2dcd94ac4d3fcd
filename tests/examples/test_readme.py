"""What `examples/modules/README.md` shows works."""

import json
import re
import shlex
from typing import Any

import pytest

from modules.service import ToolError, create_app
from support.example_modules import EXAMPLES, Module, in_process
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition, ToolParameter

README = (EXAMPLES / "modules" / "README.md").read_text()


@pytest.fixture
def owls() -> Module:
    """The module that a reader is told to write."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {
        "ModuleManifest": ModuleManifest,
        "ToolDefinition": ToolDefinition,
        "ToolError": ToolError,
        "ToolParameter": ToolParameter,
        "create_app": create_app,
    }
    exec("\n".join(blocks), names)  # noqa: S102 - our own text
    return in_process("owls", names["app"])


async def test_the_module_that_a_reader_writes_works(owls: Module) -> None:
    """It counts, refuses, and has a manifest."""
    assert (await owls("count", day=2, user_id="ada"))["result"] == {"owls": 5}
    assert (await owls("count", day=32))["error"] == "A month has 31 days at most."
    assert (await owls.get("/manifest"))["tools"][0]["name"] == "owls.count"


async def test_the_call_by_hand_gets_the_answer_that_is_shown(file_manager: Module) -> None:
    """The command's body, sent to the module, and its reply."""
    shown = re.search(r"^\$ (curl .*?)\n(\{.*?\})\n```", README, re.DOTALL | re.MULTILINE)
    assert shown
    body = json.loads(shlex.split(shown[1])[-1])
    async with file_manager.client() as client:
        assert (await client.post("/execute", json=body)).json() == json.loads(shown[2])


def test_the_start_command_is_the_one_we_use() -> None:
    """What the tests start is what a reader starts."""
    assert "python -m uvicorn modules.file_manager.main:app --host 127.0.0.1" in README
