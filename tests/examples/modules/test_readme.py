"""What the guides to modules show works."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from support.documents import programs
from support.modules.example_modules import EXAMPLES, Module, in_process
from support.modules.http_executor import executor_for
from support.published_call import published
from toolfleet_registry.contracts.attempts import Outcome

EXAMPLE_PAGE, SDK_PAGE = "examples/modules/README.md", "docs/guides/sdk.md"
EXAMPLE_GUIDE = (EXAMPLES.parent / EXAMPLE_PAGE).read_text()
ANY_LANGUAGE = (EXAMPLES.parent / "docs" / "guides" / "modules-in-any-language.md").read_text()


@pytest.fixture
def owls() -> Module:
    """The module that a reader is told to write."""
    names: dict[str, Any] = {}
    exec(programs(SDK_PAGE)["owls"], names)  # noqa: S102 - our own text
    return in_process("owls", names["app"])


async def test_the_module_that_a_reader_writes_works(owls: Module) -> None:
    """It counts, refuses, and has a manifest."""
    assert (await owls("count", day=2, user_id="ada"))["result"] == {"owls": 5}
    assert (await owls("count", day=32))["error"] == "A month has 31 days at most."
    (tool,) = (await owls.get("/manifest"))["tools"]
    assert (tool["name"], tool["description"]) == ("owls.count", "How many owls were seen on a day.")
    assert list(tool["input_schema"]["properties"]) == ["day"]


async def test_the_call_by_hand_gets_the_answer_that_is_shown(file_manager: Module) -> None:
    """The command's body, sent to the module, and its reply."""
    shown = re.search(r"^\$ (curl .*?)\n(\{.*?\})\n```", EXAMPLE_GUIDE, re.DOTALL | re.MULTILINE)
    assert shown
    body = json.loads(shlex.split(shown[1])[-1])
    async with file_manager.client() as client:
        assert (await client.post("/execute", json=body)).json() == json.loads(shown[2])


def test_the_start_command_is_the_one_we_use() -> None:
    """What the tests start is what a reader starts."""
    assert "python -m uvicorn modules.file_manager.main:app --host 127.0.0.1" in EXAMPLE_GUIDE


async def test_the_question_by_hand_gets_the_answer_that_is_shown(code_executor: Module) -> None:
    """The command after a call that is not remembered, sent to the module, and its reply."""
    shown = re.search(r"^\$ (curl [^\n]*/reconcile [^\n]*)\n(\{.*?\})\n```", ANY_LANGUAGE, re.MULTILINE)
    assert shown
    async with code_executor.client() as client:
        answer = await client.post("/reconcile", json=json.loads(shlex.split(shown[1])[-1]))
    assert answer.json() == json.loads(shown[2])


async def test_the_fleet_finds_out_what_a_program_printed(code_executor: Module) -> None:
    """A call whose reply was lost is asked for, and its result is there."""
    call = published("research.run_python", call_id="c-lost")
    async with code_executor.client() as client:
        body = {"tool_name": "code_executor.run_python", "arguments": {"code": "print(7)"}}
        await client.post("/execute", json=body, headers={"Idempotency-Key": "c-lost"})
    async with executor_for(code_executor.url) as executor:
        attempt = await executor.reconcile(call, seconds=10)

    assert attempt is not None
    assert attempt.outcome is Outcome.SUCCESS
    assert attempt.result.result["stdout"] == "7\n"


async def test_a_core_saves_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the function that the guide shows, among the files of its user."""
    monkeypatch.setenv("FILE_MANAGER_ROOT", str(tmp_path))
    names: dict[str, Any] = {}
    exec(programs(EXAMPLE_PAGE)["upload"], names)  # noqa: S102 - our own text

    saved = await names["upload"]("ada", "owls.txt", b"hu", "text/plain")
    assert (saved.name, saved.size, saved.user_id) == ("owls.txt", 2, "ada")
