"""Each module's folder and image, as far as they can be judged without a container engine."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.modules.dockerfiles import Stage, read_stages
from support.modules.example_modules import EXAMPLES, Module, running_copy
from support.waiting import PATIENCE_SECONDS
from toolfleet_cli.local.modules import find_examples

CLONE = EXAMPLES.parent
MODULES = [example.name for example in find_examples()]
STANDARD = {"__init__.py", "Dockerfile", "requirements.txt", "main.py", "manifest.py", "tools.py"}
PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
ROOMS = ("registry", "modules", "tasks", "workers", "gateway", "cli")
DOCUMENTS = {"README.md", "CHANGELOG.md", *(f"{room}/README.md" for room in ROOMS)}
TRIED: dict[str, tuple[str, dict[str, object]]] = {
    "claude_code": ("run_task", {"prompt": "a page about owls"}),
    "code_executor": ("run_python", {"code": "print(6 * 7)"}),
    "deployer": ("list_deployments", {}),
    "file_manager": ("create_document", {"name": "owls.txt", "content": "7"}),
    "knowledge": ("save", {"title": "owls", "text": "seven"}),
    "location": ("set_place", {"name": "Berlin"}),
    "report_builder": ("quick_report", {"title": "Owls", "seconds": 0}),
    "research": ("search_docs", {"query": "toolfleet"}),
}


def stages_of(name: str) -> tuple[Stage, Stage]:
    build, final = read_stages(EXAMPLES / "modules" / name / "Dockerfile")
    return build, final


def requirements_of(name: str) -> list[Requirement]:
    lines = (EXAMPLES / "modules" / name / "requirements.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_standard_layout(name: str) -> None:
    """Every module's folder has the same six files, and more where it needs them; each is tried here."""
    assert set(MODULES) == set(TRIED)
    assert {path.name for path in (EXAMPLES / "modules" / name).iterdir()} >= STANDARD


@pytest.mark.parametrize("name", MODULES)
def test_an_image_is_built_from_what_there_is(name: str) -> None:
    """Everything that it copies exists, it starts its own module, and not as root."""
    build, final = stages_of(name)
    copied = build.sources() + final.sources()

    assert [source for source in copied if not (CLONE / source).exists()] == []
    assert f"examples/modules/{name}/requirements.txt" in build.sources()
    assert final.cmd()[:2] == ["uvicorn", f"modules.{name}.main:app"]
    assert all(int(number) > 0 for number in final.all("USER")[-1].split(":"))


@pytest.mark.parametrize("name", MODULES)
def test_images_differ_in_what_is_the_modules_own_alone(name: str) -> None:
    """Who mends one image mends all: but for the module's name, all are built alike."""
    build, final = stages_of(name)
    other_build, other_final = stages_of("research")

    assert [(word, text.replace(name, "research")) for word, text in build.instructions] == other_build.instructions
    for word in ("FROM", "WORKDIR", "USER", "STOPSIGNAL"):
        assert final.all(word) == other_final.all(word)
    assert [text.replace(name, "research") for text in final.all("CMD")] == other_final.all("CMD")


@pytest.mark.parametrize("name", MODULES)
def test_an_image_has_only_what_is_locked(name: str) -> None:
    """Versions and hashes come from the lock, which knows all that is required; the project comes from the clone."""
    locked = set(re.findall(r"(?m)^([a-z0-9.-]+)==", (CLONE / "requirements.lock").read_text()))
    (install,) = (run for run in stages_of(name)[0].all("RUN") if "uv pip install" in run)
    required = {canonicalize_name(requirement.name) for requirement in requirements_of(name)}

    assert required - locked in ({"toolfleet"}, {"toolfleet-sdk"})
    assert "--constraint requirements.lock --build-constraint requirements.lock" in install
    assert '"toolfleet @ file:///src" "toolfleet-sdk @ file:///src/modules" > here.txt' in install
    assert "--constraint here.txt --requirement requirements.txt" in install


@pytest.mark.parametrize("name", MODULES)
def test_requirements_are_the_projects_own(name: str) -> None:
    """What a module requires is required by the project in the same words, so that there is one place to change a version."""
    extras = PROJECT["optional-dependencies"]
    ours = {Requirement(line) for lines in (PROJECT["dependencies"], *extras.values()) for line in lines}

    for requirement in requirements_of(name):
        assert requirement in ours or requirement.name in {"toolfleet", "toolfleet-sdk"}
        assert requirement.name != "toolfleet" or requirement.extras <= extras.keys()


@pytest.mark.parametrize("name", MODULES)
async def test_a_module_runs_from_what_its_image_copies(name: str, tmp_path: Path) -> None:
    """The command of the image starts the module in a folder that holds nothing else."""
    _, final = stages_of(name)
    with running_copy(name, tmp_path, final.lay_out(CLONE, tmp_path / "root"), Path(sys.executable)) as module:
        await _works(module)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODULES)
async def test_a_module_runs_with_what_its_image_installs(name: str, tmp_path: Path) -> None:
    """What the image's build installs is enough: the same commands, in folders of this test's own."""
    build, final = stages_of(name)
    source, environment = build.lay_out(CLONE, tmp_path), tmp_path / "venv"
    (command,) = (run for run in build.all("RUN") if "uv pip install" in run)
    await asyncio.to_thread(_run, command.replace("/src", str(source)).replace("/venv", str(environment)), source)
    shutil.rmtree(source)

    examples = final.lay_out(CLONE, tmp_path / "root")
    with running_copy(name, tmp_path, examples, environment / "bin" / "python") as module:
        await _works(module)


def _run(command: str, folder: Path) -> None:
    """With the uv and the Python of this environment, and whatever the machine says of indexes."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["sh", "-c", command]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=25 * PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr


async def _works(module: Module) -> None:
    """It runs, and does what takes most of the other files of its image."""
    assert (await module.get("/health"))["module"] == module.name
    tool, arguments = TRIED[module.name]
    reply = await module(tool, user_id="ada", **arguments)
    assert reply["success"], reply
    if module.name == "research":
        found = {result["path"] for result in reply["result"]["results"]}
        assert found
        assert all(path in DOCUMENTS or path.startswith("docs/") for path in found)
