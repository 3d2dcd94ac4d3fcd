"""`claude_code` over HTTP: the life of a task, what an agent may not do, and who sees what."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.claude_code.settings import ClaudeCodeSettings
from modules.claude_code.task_store import TaskStore
from modules.claude_code.workspace_files import list_files
from support.modules.example_modules import Module
from support.modules.workshop import (
    agent,
    claude_code_here,
    finished,
    processes_of,
    refusal,
    result,
    until,
)
from support.waiting import wait_until

FOREVER = "import time\nwhile True: time.sleep(1)"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Module]:
    """With the scripted agent, for tests that break nothing."""
    folder = tmp_path_factory.mktemp("claude")
    with claude_code_here(folder, concurrency=4, open_tasks=50) as running:
        yield running


async def test_a_task_runs_from_its_prompt_to_its_files(module: Module) -> None:
    """It returns at once with a workspace; later there is a site in it, a log, and a summary."""
    began = time.monotonic()
    started = await result(module, "run_task", prompt="Owls of the north\nThey <hoot>.\nagent: seconds 3")
    assert time.monotonic() - began < 5
    assert started["status"] in {"queued", "running"}
    assert Path(started["workspace"]).is_dir()

    await until(module, "task_status", {"running"}, task_id=started["task_id"])
    done = await finished(module, started["task_id"])

    assert (done["status"], done["exit_code"], done["error"]) == ("completed", 0, None)
    assert done["workspace"] == started["workspace"]
    assert done["files"] == ["dist/about.html", "dist/index.html", "dist/style.css"]
    assert done["summary"].splitlines()[-1].startswith("Done:")
    assert done["seconds"] >= 3
    page = (Path(done["workspace"]) / "dist/index.html").read_text()
    assert "<h1>Owls of the north</h1>" in page
    assert "&lt;hoot&gt;" in page
    log = await result(module, "task_logs", task_id=started["task_id"])
    assert log["text"].startswith("Reading the task: Owls of the north\n")
    assert (log["offset"], log["skipped"], log["next_offset"]) == (0, 0, log["total"])


async def test_a_task_that_fails_says_so(module: Module) -> None:
    """The status has the exit code, and the agent's last words."""
    task = await result(module, "run_task", prompt="Owls\nagent: fail\nagent: seconds 0.1")
    done = await finished(module, task["task_id"])

    assert (done["status"], done["exit_code"]) == ("failed", 1)
    assert done["error"] == "The agent ended with exit code 1; its log says why."
    assert "I cannot do this" in done["summary"]


async def test_a_task_that_takes_too_long_is_ended(module: Module) -> None:
    """It ends as timed out, and has no exit code."""
    task = await result(module, "run_task", prompt="Owls\nagent: hang\nagent: seconds 0.1", timeout_seconds=0.5)
    done = await finished(module, task["task_id"])

    assert (done["status"], done["exit_code"]) == ("timed_out", None)


async def test_a_log_is_read_in_parts(module: Module) -> None:
    """Each part says where the next begins, whole characters only; a negative offset counts from the end."""
    task = await result(module, "run_task", prompt="Eulen 🦉🦉🦉 äöü\nagent: seconds 0.1")
    await finished(module, task["task_id"])
    whole = (await result(module, "task_logs", task_id=task["task_id"]))["text"]

    offset, parts = 0, []
    while (part := await result(module, "task_logs", task_id=task["task_id"], offset=offset, limit=5))["text"]:
        parts.append(part["text"])
        offset = part["next_offset"]
    last = await result(module, "task_logs", task_id=task["task_id"], offset=-10)

    assert "".join(parts) == whole
    assert "🦉🦉🦉 äöü" in whole
    assert whole.endswith(last["text"])


async def test_a_task_is_its_owners_alone(module: Module) -> None:
    """For everybody else it is as if there were none; nobody has tasks without a user."""
    task = await result(module, "run_task", prompt="Owls\nagent: seconds 0.1")
    for tool in ("task_status", "task_logs", "cancel_task"):
        strange = await refusal(module, tool, user="bob", task_id=task["task_id"])
        missing = await refusal(module, tool, user="bob", task_id="t0")
        assert strange == missing.replace("'t0'", repr(task["task_id"]))
    assert task["task_id"] not in str(await result(module, "list_tasks", user="bob", limit=100))
    assert task["task_id"] in str(await result(module, "list_tasks", limit=100))
    assert "for which user" in await refusal(module, "run_task", user=None, prompt="Owls")
    await finished(module, task["task_id"])


@pytest.mark.parametrize("task_id", ["../x", "/etc/passwd", "", "t" * 100, "T1", ".tasks", "t\0", "%2e%2e"])
async def test_a_task_id_is_no_path(module: Module, task_id: str) -> None:
    """Whatever a model writes leads nowhere."""
    assert "You have no task" in await refusal(module, "task_status", task_id=task_id)


async def test_a_call_that_arrives_twice_starts_one_task(module: Module) -> None:
    """At the same time or later: the same call id is the same task, and another prompt under it is refused."""
    wanted = {"prompt": "Twice\nagent: seconds 0.1", "call_id": "call-1"}
    both = await asyncio.gather(*(result(module, "run_task", **wanted) for _ in range(4)))
    later = await result(module, "run_task", **wanted)
    other = await result(module, "run_task", **{**wanted, "call_id": "call-2"})

    assert {task["task_id"] for task in both} == {later["task_id"]}
    assert other["task_id"] != later["task_id"]
    await finished(module, later["task_id"])
    await finished(module, other["task_id"])


async def test_what_no_task_can_be_is_refused(module: Module) -> None:
    """The model is told what is wrong, and nothing is started."""
    assert "prompt" in await refusal(module, "run_task", prompt="")
    assert "3600 s at most" in await refusal(module, "run_task", prompt="x", timeout_seconds=4000)
    assert "timeout_seconds" in await refusal(module, "run_task", prompt="x", timeout_seconds=-1)


async def test_a_cancelled_task_ends_with_all_it_started(folder: Path) -> None:
    """Also what left its group and what does not want to end; cancelling again changes nothing."""
    stubborn = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True)\n"
        "open('ready', 'w').close()\n"
        f"{FOREVER}"
    )
    with claude_code_here(folder, command=agent(stubborn), grace_seconds=0.3) as module:
        task = await result(module, "run_task", prompt="x")
        named = {"task_id": task["task_id"]}
        await wait_until(Path(task["workspace"], "ready").exists, "the agent runs")
        cancelled, again = await asyncio.gather(*(result(module, "cancel_task", **named) for _ in range(2)))
        last = await result(module, "cancel_task", **named)

        assert [each["status"] for each in (cancelled, again, last)] == ["cancelled"] * 3
        assert not [command for command in processes_of(folder).values() if "time.sleep" in command]


async def test_a_cancellation_races_an_end(module: Module) -> None:
    """Whichever is first, the task has one end, and keeps it."""

    async def race(number: int) -> None:
        task = await result(module, "run_task", prompt=f"Race {number}\nagent: seconds 0.05")
        for _ in range(2 * number):  # the later ones look for a while, and cancel at or after its end
            await result(module, "task_status", task_id=task["task_id"])
        said = await result(module, "cancel_task", task_id=task["task_id"])
        assert said["status"] in {"completed", "cancelled"}
        assert (await result(module, "task_status", task_id=task["task_id"]))["status"] == said["status"]

    await asyncio.gather(*(race(number) for number in range(12)))


async def test_tasks_wait_for_their_turn(folder: Path) -> None:
    """In order, no more at once than are allowed; one that is cancelled while it waits never starts."""
    touch = "import pathlib, sys, time\npathlib.Path('started').touch()\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    with claude_code_here(folder, command=agent(touch), concurrency=1, open_tasks=3) as module:
        tasks = [await result(module, "run_task", prompt=str(number)) for number in range(3)]
        assert "3 of your tasks" in await refusal(module, "run_task", prompt="one more")
        cancelled = await result(module, "cancel_task", task_id=tasks[1]["task_id"])
        for number in (0, 2):
            Path(tasks[number]["workspace"], "go").touch()
        third = await finished(module, tasks[2]["task_id"])
        listed = await result(module, "list_tasks")

        assert (cancelled["status"], third["status"]) == ("cancelled", "completed")
        assert [each["task_id"] for each in listed] == [task["task_id"] for task in reversed(tasks)]
        assert [Path(task["workspace"], "started").exists() for task in tasks] == [True, False, True]
        another = await result(module, "run_task", prompt="one more")
        Path(another["workspace"], "go").touch()


async def test_an_agent_knows_nothing_of_the_modules_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a home, a path, what is passed by name, its prompt on standard input, and the paths in its command."""
    monkeypatch.setenv("TOOLFLEET_MODULE_KEY", "")
    monkeypatch.setenv("API_TOKEN", "let through")
    monkeypatch.setenv("DATABASE_PASSWORD", "kept back")
    code = (
        "import json, os, sys\n"
        "print(json.dumps({'env': dict(os.environ), 'argv': sys.argv[1:], 'stdin': sys.stdin.read(), 'cwd': os.getcwd()}))"
    )
    command = agent(code, "--in={workspace}", "{prompt_file}", "; $(id)")
    with claude_code_here(folder, command=command, pass_env='["API_TOKEN"]') as module:
        task = await result(module, "run_task", prompt="Eule 🦉")
        assert (await finished(module, task["task_id"]))["status"] == "completed"
        said = json.loads((await result(module, "task_logs", task_id=task["task_id"]))["text"])

    assert set(said["env"]) - {"LC_CTYPE"} == {"PATH", "HOME", "TMPDIR", "LANG", "TOOLFLEET_COMMAND", "API_TOKEN"}
    assert said["env"]["API_TOKEN"] == "let through"
    assert (said["stdin"], said["cwd"]) == ("Eule 🦉", task["workspace"])
    assert said["argv"][0] == f"--in={task['workspace']}"
    assert Path(said["argv"][1]).read_text() == "Eule 🦉"
    assert said["argv"][2] == "; $(id)"


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are shown as such: a status that cannot be sent would be none."""
    os.close(os.open(os.fsencode(tmp_path) + b"/caf\xe9.txt", os.O_CREAT | os.O_WRONLY))

    assert list_files(tmp_path) == (["caf\\xe9.txt"], False)


async def test_a_flood_of_output_fills_no_disk(folder: Path) -> None:
    """The beginning and the latest are kept, the status stays quick, and a reader is told what is missing."""
    flood = "import sys\nprint('begin')\nfor _ in range(3000): sys.stdout.write('x' * 1023 + '\\n')\nprint('the end')"
    with claude_code_here(folder, command=agent(flood), log_bytes=80_000) as module:
        task = await result(module, "run_task", prompt="x")
        done = await finished(module, task["task_id"])
        first = await result(module, "task_logs", task_id=task["task_id"], limit=50_000)
        then = await result(module, "task_logs", task_id=task["task_id"], offset=first["next_offset"], limit=10)

    kept = sum(path.stat().st_size for path in (folder / "workspaces" / ".tasks" / task["task_id"] / "log").iterdir())
    assert done["summary"].splitlines()[-1] == "the end"
    assert kept <= 80_000
    assert first["total"] > 3_000_000
    assert first["text"].startswith("begin\n")
    assert then["skipped"] > 2_900_000
    assert then["text"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os, shutil; shutil.rmtree(os.getcwd())", "The agent has removed its workspace."),
        (  # a link in its place is none either
            "import os, shutil\nhere = os.getcwd()\nshutil.rmtree(here)\nos.symlink('/', here)",
            "The agent has removed its workspace.",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "The agent ended with exit code -9; its log says why.",
        ),
        (  # more processes than it may have
            "import os, time\nfor _ in range(40): os.fork() or time.sleep(60)\ntime.sleep(60)",
            "The agent had more processes at once than it may have, and was ended.",
        ),
        ("open('.big', 'wb').write(b'x' * 2**21)", "The agent ended with exit code 1; its log says why."),
    ],
)
async def test_an_agent_that_misbehaves_fails(folder: Path, code: str, error: str) -> None:
    """The task says what was wrong, and nothing of the agent is left."""
    isolation = "none" if "rmtree" in code else "best"  # a sandbox's workspace cannot be removed from inside
    with claude_code_here(folder, command=agent(code), processes=20, file_mb=1, isolation=isolation) as module:
        task = await result(module, "run_task", prompt="x")
        done = await finished(module, task["task_id"])

        assert (done["status"], done["error"], done["files"]) == ("failed", error, [])


async def test_what_an_agent_leaves_behind_is_ended(folder: Path) -> None:
    """A task that has completed has no processes, also none in a session of their own."""
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True)"
    with claude_code_here(folder, command=agent(code)) as module:
        task = await result(module, "run_task", prompt="x")

        assert (await finished(module, task["task_id"]))["status"] == "completed"
        assert not [command for command in processes_of(folder).values() if "time.sleep" in command]


async def test_an_agent_that_cannot_be_started_is_the_operators_business(folder: Path) -> None:
    """The task fails, and says which setting to look at, not where things lie."""
    with claude_code_here(folder, command='["/no/such/agent"]') as module:
        task = await result(module, "run_task", prompt="x")
        done = await finished(module, task["task_id"])

    assert (done["status"], done["exit_code"]) == ("failed", None)
    assert "CLAUDE_CODE_COMMAND" in done["error"]
    assert "/no/such" not in str(done)


async def test_old_tasks_are_swept(folder: Path) -> None:
    """Some time after its end a task is gone, with its workspace; one that waits stays."""
    with claude_code_here(folder) as module:
        task = await result(module, "run_task", prompt="Owls\nagent: seconds 0.1")
        await finished(module, task["task_id"])
    store = TaskStore(ClaudeCodeSettings(root=folder / "workspaces", keep_hours=1e-9))
    waiting = store.create("ada", "waits", timeout_seconds=1, call_id=None)
    (folder / "workspaces" / ".tasks" / ".draft-0").mkdir()

    await wait_until(lambda: store.sweep() == 1, "the task is old enough")
    assert store.get(task["task_id"]) is None
    assert not Path(task["workspace"]).exists()
    assert store.get(waiting.task_id) == waiting
