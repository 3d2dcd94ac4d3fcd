"""Hosted CI and the hooks of pre-commit run what anybody can run here: they only name targets that the Makefile has."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.documents import pages

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
MOST_TARGETS, MOST_CHARACTERS = 29, 120
LEFT_OUT = {"docs/concepts/why-not.md": {"psql", "shell"}}
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    # `on` is a boolean in YAML 1.1, and a key of workflows.
    loaded = yaml.safe_load(re.sub(r"(?m)^on:", '"on":', path.read_text()))
    assert isinstance(loaded, dict)
    return loaded


def steps() -> Iterator[dict[str, Any]]:
    for job in read(WORKFLOW)["jobs"].values():
        yield from job["steps"]


def hooks() -> list[dict[str, Any]]:
    return [hook for repo in read(HOOKS)["repos"] for hook in repo["hooks"]]


def is_here(command: str) -> bool:
    """Whether it is a target of the Makefile, a program of this repository, or one of its environment."""
    program, *words = command.split()
    if program == "make":
        return bool(words) and words[0] in TARGETS
    return (ROOT / program).is_file() if program.startswith(".ci/") else (ROOT / program).exists()


def test_a_target_has_a_line_of_help_and_there_are_few() -> None:
    """What `make help` prints can be read as a whole."""
    helped = dict(re.findall(r"^([a-z-]+):.*## (.+)$", MAKEFILE, re.MULTILINE))

    assert set(helped) == TARGETS
    assert len(TARGETS) <= MOST_TARGETS
    assert [name for name, line in helped.items() if len(f"  make {name:15} {line}") > MOST_CHARACTERS] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md", *pages()])
def test_documents_name_targets_that_there_are(page: str) -> None:
    """What a reader types is in the Makefile, but on the page that says what there is not."""
    named = re.findall(r"(?:`|\$ )make ([a-z]+(?:-[a-z]+)*)", (ROOT / page).read_text())

    assert {name for name in named if name not in TARGETS} == LEFT_OUT.get(page, set())


def test_hosted_ci_runs_what_is_here() -> None:
    """Every step is a target of the Makefile or a program in `.ci`."""
    commands = [line for step in steps() for line in step.get("run", "").splitlines()]

    assert {"make lint", "make test-all", "make proofs", "make conformance"} <= set(commands)
    assert [command for command in commands if command.startswith("make test TESTS=") and "short-tier" in command]
    assert [command for command in commands if not command.startswith(("make ", ".ci/"))] == []
    assert [command for command in commands if not is_here(command)] == []


def test_hosted_ci_takes_the_code_of_others_by_its_digest() -> None:
    """A tag can be moved; and nothing says where packages come from."""
    used = [step["uses"] for step in steps() if "uses" in step]

    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name)] == []
    assert not re.search(r"://|index|registry", WORKFLOW.read_text())


def test_hosted_ci_may_read_only() -> None:
    """What a change runs there cannot write to the repository, and keeps no token of it."""
    workflow = read(WORKFLOW)

    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job and job["timeout-minutes"] for job in workflow["jobs"].values())
    for step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_hooks_run_what_is_here() -> None:
    """Each is a target of the Makefile or a program of .venv: nothing is fetched."""
    assert {repo["repo"] for repo in read(HOOKS)["repos"]} == {"local"}
    assert {hook["language"] for hook in hooks()} == {"system"}
    assert [hook["entry"] for hook in hooks() if not is_here(hook["entry"])] == []


def test_hooks_are_the_linters() -> None:
    """Before a commit those that take seconds run, before a push all of them."""
    recipe = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    linters = set(re.findall(r"\$\(BIN\)/([a-z-]+(?: [a-z]+)?)", recipe))
    before_a_commit = {hook["entry"] for hook in hooks() if "stages" not in hook}

    assert {entry.removeprefix(".venv/bin/").partition(" --")[0] for entry in before_a_commit} <= linters
    assert [hook["entry"] for hook in hooks() if hook.get("stages") == ["pre-push"]] == ["make lint"]


def test_pre_commit_can_read_its_hooks() -> None:
    assert subprocess.run([sys.executable, "-m", "pre_commit", "validate-config", HOOKS], check=False).returncode == 0


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_a_form_has_what_a_forge_asks_for(form: Path) -> None:
    """A name, a description, and fields with ids of their own."""
    fields = read(form)
    inputs = [field for field in fields["body"] if field["type"] != "markdown"]
    named = re.findall(r"`((?:docs/)?[\w]+\.md)`", form.read_text())

    assert fields["name"]
    assert fields["description"]
    assert len({field["id"] for field in inputs}) == len(inputs)
    assert all(field["attributes"]["label"] for field in inputs)
    assert [path for path in named if not (ROOT / path).exists()] == []


ONCE = """
import os, pathlib, pytest

@pytest.fixture(params=range({count}))
def fails_once(request):
    seen = pathlib.Path(__file__).with_name(f"seen{{request.param}}")
    if not seen.exists():
        seen.touch()
        {fault}
"""
USED = "def test_it(fails_once): pass\ndef test_other(): pass"


FAILING = ONCE.format(count=1, fault="assert False") + USED
CRASHING = ONCE.format(count=1, fault="os._exit(1)") + USED


@pytest.mark.parametrize(
    ("program", "processes", "is_red", "flaky"),
    [
        ("def test_it(): pass", 1, False, 0),
        (FAILING, 1, False, 1),
        (ONCE.format(count=5, fault="assert False") + USED, 2, False, 5),
        (ONCE.format(count=6, fault="assert False") + USED, 1, True, 0),
        (FAILING + "\ndef test_wrong(): assert False", 1, True, 0),
        (ONCE.format(count=1, fault="assert False\n    else:\n        pytest.skip()") + USED, 1, True, 0),
        (CRASHING, 1, True, 0),
        (CRASHING, 2, True, 0),
        ("import nothing_of_that_name", 2, True, 0),
        ("", 1, True, 0),
    ],
)
def test_a_failed_test_is_repeated_once(
    tmp_path: Path, program: str, processes: int, flaky: int, *, is_red: bool
) -> None:
    """Up to five tests that pass when they are repeated alone fail no run, and are named; all else stays as it was."""
    (tmp_path / "test_program.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-q"]
    if processes > 1:
        command += ["-p", "xdist", "-n", str(processes)]
    named = tmp_path / "named"
    # The plugins that are installed cost each of the many starts here a second of imports, and none of them is used.
    env = {**os.environ, "FLAKY": str(named), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    run = subprocess.run(
        [str(ROOT / ".ci" / "repeat"), *command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    lines = named.read_text().splitlines() if named.exists() else []

    assert (run.returncode != 0, len(lines)) == (is_red, flaky), run.stdout + run.stderr
    assert [line for line in lines if not line.startswith("FLAKY test_program.py::test_it[")] == []
