"""The contract with modules, over versions: what each has answered and asked was kept, and either side reads the other's."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from support.published_call import published
from toolfleet_modules.calls.request import ExecuteRequest, ReconcileRequest, StatusRequest
from toolfleet_registry.admission_rules import admit, read_document
from toolfleet_registry.contracts.attempts import Attempt, StillAtWork
from toolfleet_workers.executors.reply import judge_reply
from toolfleet_workers.executors.status import judge_answer, judge_status_answer
from wire.stored import contract_module, worker_questions
from wire.stored.keep_stored import kept_contract

KEEP = "the contract has changed: run `PYTHONPATH=tests python -m wire.stored.keep_stored`, and commit the fixtures"
KEPT = kept_contract()
TOOLS = {
    "success": "echo",
    "files": "draw",
    "failure": "fail",
    "accepted": "hatch",
    "question": "greet",
    "reconcile asked": "greet",
    "status asking": "greet",
}
FAILED = [False, "module_error"]
MEANS: dict[str, Any] = {
    "success": [True, None, "done"],
    "files": [True, None, "done", "owl.png"],
    "failure": [*FAILED, "none", "retryable"],
    "accepted": [False, "outcome_unknown", "unknown", "egg-1", 0.5],
    "question": [*FAILED, "none", "who", "owls ✓"],
    "reconcile unknown": None,
    "reconcile accepted": [False, "outcome_unknown", "unknown", "egg-1", None],
    "reconcile done": [True, None, "done"],
    "reconcile asked": [*FAILED, "none", "who", "owls ✓"],
    "status working": 2.0,
    "status done": [True, None, "done"],
    "status failed": [*FAILED, "done"],
    "status asking": [*FAILED, "none", "who", "owls ✓"],
    "status unknown": [False, "outcome_unknown", "unknown"],
}
QUESTIONS: dict[str, type[BaseModel]] = {
    "execute": ExecuteRequest,
    "reconcile": ReconcileRequest,
    "status": StatusRequest,
}


async def test_what_modules_answer_was_kept() -> None:
    """Whoever changes an answer adds a fixture, behind those of older versions."""
    assert {name: texts[-1] for name, texts in KEPT["answers"].items()} == await contract_module.answers(), KEEP


def test_what_workers_ask_was_kept() -> None:
    """The same holds for a call's body, and for questions about it."""
    assert {name: texts[-1] for name, texts in KEPT["questions"].items()} == worker_questions.questions(), KEEP


def test_each_answer_has_its_meaning_here() -> None:
    """None is kept that nobody reads."""
    assert KEPT["answers"].keys() == {"manifest", *MEANS}


@pytest.mark.parametrize("is_newer", [False, True], ids=["", "with-a-newer-field"])
@pytest.mark.parametrize("name", MEANS)
def test_what_modules_answered_means_what_it_meant(name: str, is_newer: bool) -> None:
    """Workers judge what each version of a module has answered alike, and ignore a field that they do not know."""
    for text in KEPT["answers"][name]:
        body = json.dumps(json.loads(text) | ({"colour": "red"} if is_newer else {})).encode()

        assert _meaning(name, body) == MEANS[name]


@pytest.mark.parametrize("is_newer", [False, True], ids=["", "with-a-newer-field"])
def test_each_manifest_is_admitted(is_newer: bool) -> None:
    """Also one with fields that are not known, of the manifest and of its tools."""
    for text in KEPT["answers"]["manifest"]:
        document = read_document(text.encode())
        if is_newer:
            document |= {"colour": "red", "tools": [{**tool, "colour": "red"} for tool in document["tools"]]}
        found = {tool.name: tool for tool in admit("nest", document).tools}

        assert set(found) == {"nest.echo", "nest.draw", "nest.fail", "nest.hatch", "nest.greet"}
        echo = found["nest.echo"]
        assert (echo.effect, echo.required_permission, echo.version, echo.tags) == ("read", "user", "1.2", ["reading"])
        assert [(each.name, each.required) for each in echo.parameters] == [("text", True), ("number", False)]
        assert (found["nest.hatch"].effect, found["nest.hatch"].daily_limit) == ("once", 5)


@pytest.mark.parametrize("is_newer", [False, True], ids=["", "with-a-newer-field"])
@pytest.mark.parametrize("name", worker_questions.questions())
def test_modules_read_what_workers_asked(name: str, is_newer: bool) -> None:
    """Whatever is asked of a module that a later worker puts into it is ignored, and all else counts."""
    form = QUESTIONS[name.partition(" ")[0]]
    for text in KEPT["questions"][name]:
        document = json.loads(text)
        read = form.model_validate_json(json.dumps(document | ({"colour": "red"} if is_newer else {})))

        assert read.model_dump(mode="json", include=set(document), exclude_defaults=True) == document


def _meaning(name: str, body: bytes) -> Any:
    """What a worker makes of an answer, in short."""
    call = published(f"nest.{TOOLS.get(name, 'hatch')}", takes_input=True)
    if name.startswith("status"):
        found: Attempt | StillAtWork | None = judge_status_answer(call, body)
    elif name.startswith("reconcile"):
        found = judge_answer(call, body)
    else:
        found = judge_reply(call, body)
    if found is None:
        return None
    if isinstance(found, StillAtWork):
        return found.poll_after_seconds
    result = found.result
    said: list[Any] = [result.success, result.error_code, result.effect_state]
    said += [file.name for file in result.files]
    said += ["retryable"] if found.says_retryable else []
    if found.acceptance is not None:
        said += [found.acceptance.handle, found.acceptance.poll_after_seconds]
    if found.question is not None:
        said += [*found.question.requests, found.question.state]
    return said
