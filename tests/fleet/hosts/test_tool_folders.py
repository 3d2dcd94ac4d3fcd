"""Tool folders in a whole fleet: what is saved there is called by agents, and what is broken is shown."""

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from support.up import Up, call, starting, toolfleet, up
from support.waiting import wait_until_sync

TOOL = '''
from toolfleet.sdk import tool

@tool(effect="read")
def {name}(day: int = 1) -> str:
    """{words}"""
    return f"{name} {{day}}"
'''

VALUE = "planted/Zq3.8817200934"
LEAKING = '''
import os, sys
from toolfleet.sdk import Context, ToolError, tool

@tool(secrets=["TOKEN"])
async def give(context: Context) -> dict[str, object]:
    """Give it away."""
    await context.progress(0.5, f"with {context.secrets['TOKEN']}")
    return {"token": context.secrets["TOKEN"]}

@tool(secrets=["TOKEN"])
def fail(context: Context) -> str:
    """Fail in words."""
    raise ToolError(f"refused: {context.secrets['TOKEN']}")

@tool(secrets=["TOKEN"], runs_in="process")
def shout(context: Context) -> str:
    """Print it, and break with it."""
    print(context.secrets["TOKEN"], file=sys.stderr, flush=True)
    raise KeyError(context.secrets["TOKEN"])
'''
TOML = """
[hosts.rooks]
folder = "birds/crows"
memory_mb = 3000
secrets = ["TOKEN"]

[secrets.TOKEN]
file = "token"
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with its own tools, a folder that is named, and one of its settings. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    for path in (".toolfleet/tools", "owls", "birds/crows"):
        (folder / path).mkdir(parents=True)
    (folder / ".toolfleet" / "tools" / "first.py").write_text(TOOL.format(name="first", words="Be the first."))
    (folder / "owls" / "hoot.py").write_text(TOOL.format(name="hoot", words="Hoot."))
    (folder / "birds" / "crows" / "caw.py").write_text(TOOL.format(name="caw", words="Caw."))
    (folder / "birds" / "crows" / "leaking.py").write_text(LEAKING)
    (folder / "token").write_text(f"{VALUE}\n")
    (folder / "toolfleet.toml").write_text(TOML)
    with up(folder, None, "--tools", "owls", "--no-gateway") as running:
        yield running


def names(fleet: Up) -> set[str]:
    listed = toolfleet("tools", "list", "--json", "--ignore-errors", cwd=fleet.folder)
    return {tool["name"] for tool in json.loads(listed.stdout)}


def test_each_folder_is_a_module(fleet: Up) -> None:
    """Under its own name, or the one that the settings give it."""
    assert {"tools.first", "owls.hoot", "rooks.caw"} <= names(fleet)
    assert call("rooks.caw", "day=3", cwd=fleet.folder)["result"] == "caw 3"


def test_where_each_tool_stands_is_listed(fleet: Up) -> None:
    """Its file, what that is imported as, and its version; as JSON, too."""
    listed = toolfleet("tools", "list", "--sources", "--json", "--ignore-errors", cwd=fleet.folder)
    (hoot,) = (each for each in json.loads(listed.stdout) if each["name"] == "owls.hoot")
    shown = toolfleet("tools", "list", "--sources", "--ignore-errors", cwd=fleet.folder, env={"COLUMNS": "400"}).stdout

    assert hoot["source"]["file"] == str(fleet.folder / "owls" / "hoot.py")
    assert hoot["source"]["python_module"] == "_toolfleet_tools.hoot"
    assert hoot["source"]["digest"].startswith(hoot["version"])
    (line,) = (line for line in shown.splitlines() if line.startswith("owls.hoot"))
    assert line.split()[3:6] == [hoot["source"]["file"], "_toolfleet_tools.hoot", hoot["version"]]


@pytest.mark.slow
def test_a_tool_that_is_created_is_there_at_once(fleet: Up) -> None:
    """Agents see it, and call it, without a restart of anything."""
    made = toolfleet("create", "tool", "echo_text", cwd=fleet.folder)
    assert made.returncode == 0, made.stderr
    wait_until_sync(lambda: "tools.echo_text" in names(fleet), "the new tool is listed")

    assert call("tools.echo_text", "text=owl", "times=2", cwd=fleet.folder)["result"] == {"text": "owl owl"}
    again = toolfleet("create", "tool", "echo_text", cwd=fleet.folder)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


def test_a_file_that_breaks_is_shown_and_its_version_before_is_served(fleet: Up) -> None:
    """The list of tools says which file and which line, and exits with 1 until it is whole again."""
    file = fleet.folder / "owls" / "hoot.py"
    whole = file.read_text()
    file.write_text(whole + "def (\n")

    wait_until_sync(lambda: toolfleet("tools", "list", cwd=fleet.folder).returncode == 1, "the error is known")
    listed = toolfleet("tools", "list", cwd=fleet.folder)
    assert f"{file}:{len(whole.splitlines()) + 1}: SyntaxError" in listed.stderr.replace("\n", "")
    assert "Its version before is served." in listed.stderr.replace("\n", " ")
    assert call("owls.hoot", cwd=fleet.folder)["result"] == "hoot 1"
    file.write_text(whole)
    wait_until_sync(lambda: toolfleet("tools", "list", cwd=fleet.folder).returncode == 0, "it is whole again")


@pytest.mark.slow
def test_all_hosts_read_their_files_anew_when_somebody_asks(fleet: Up) -> None:
    """Also a file that has not changed and did not load before, for a reason that lay elsewhere."""
    note = fleet.folder / "owls" / "note"
    file = fleet.folder / "owls" / "late.py"
    words = f"import pathlib\nassert pathlib.Path({str(note)!r}).exists()\n"
    file.write_text(words + TOOL.format(name="late", words="Be late."))
    wait_until_sync(lambda: toolfleet("tools", "list", cwd=fleet.folder).returncode == 1, "the error is known")
    broken = toolfleet("tools", "reload", cwd=fleet.folder)
    assert (broken.returncode, "AssertionError" in broken.stderr) == (1, True)

    note.touch()
    asked = toolfleet("tools", "reload", "--json", cwd=fleet.folder)
    assert asked.returncode == 0, asked
    answers = {each["module"]: each for each in json.loads(asked.stdout)}
    assert answers.keys() == {"owls", "rooks", "tools"}
    assert all(each["is_done"] for each in answers.values())
    assert "owls.late" in names(fleet)
    said = toolfleet("tools", "reload", cwd=fleet.folder).stdout
    assert f"owls: {answers['owls']['tools']} tools" in said
    file.unlink()


def test_a_host_knows_no_key_of_the_fleets(fleet: Up) -> None:
    """Nor does the process of its tools know where the fleet's Redis is."""
    looking = '''
import os
from toolfleet.sdk import tool

@tool
def variables() -> list[str]:
    """List the variables."""
    return sorted(os.environ)
'''
    (fleet.folder / "owls" / "looking.py").write_text(looking)
    wait_until_sync(lambda: "owls.variables" in names(fleet), "the new tool is listed")

    assert "TOOLFLEET" not in str(call("owls.variables", cwd=fleet.folder)["result"])


@pytest.mark.slow
def test_a_planted_secret_is_found_nowhere(fleet: Up) -> None:
    """Its tools give it away in every way: neither an agent, nor Redis, a log, a list, or what is known of a process shows it."""
    with _redis_commands(fleet) as commands:
        said = [toolfleet("call", f"rooks.{name}", "--json", cwd=fleet.folder) for name in ("give", "fail", "shout")]
        wait_until_sync(lambda: "inside the module (KeyError)" in "".join(commands), "all results were seen")
    texts = [each.stdout + each.stderr for each in said]
    for text, words in zip(texts, ("[secret TOKEN]", "refused: [secret TOKEN]", "inside the module (K"), strict=True):
        assert words in text
    commands_of_people = (["tools", "list", "--json"], ["modules", "list"], ["audit", "tail"], ["config", "--all"])
    texts += [str(toolfleet(*words, cwd=fleet.folder)) for words in commands_of_people]
    logs = "".join(log.read_text(errors="replace") for log in (fleet.folder / ".toolfleet" / "logs").glob("*.log"))
    assert "KeyError: '[secret TOKEN]'" in logs
    assert "refused: [secret TOKEN]" in "".join(commands)
    tool_processes = [pid for pid, line in fleet.processes().items() if "tool_child" in line]
    assert tool_processes
    texts += [logs, *commands, *fleet.processes().values()]
    texts += [str(psutil.Process(pid).environ()) for pid in tool_processes]

    assert [text for text in texts if VALUE in text] == []


@contextmanager
def _redis_commands(fleet: Up) -> Generator[list[str]]:
    """What anybody has sent to the fleet's Redis meanwhile, also what is gone by then."""
    seen: list[str] = []
    with redis.Redis.from_url(fleet.run_file().settings["redis_url"]) as client, client.monitor() as monitor:

        def watch() -> None:
            for each in monitor.listen():
                seen.append(str(each and each["command"]))
                if seen[-1] == "ECHO over":
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield seen
        finally:
            client.execute_command("ECHO", "over")
            watching.join()


def test_what_cannot_be_served_is_one_clear_error(tmp_path: Path) -> None:
    """Before anything is started."""
    with starting(tmp_path, None, "--tools", "missing") as refused:
        assert refused.wait() == 2
        assert "There is no tool folder" in refused.said().replace("\n", " ")


def test_a_line_that_names_a_module_twice_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    """The service stays, as it is known everywhere; the folder of that name is not served."""
    (tmp_path / "owls").mkdir()
    toml = '[hosts.owls]\nfolder = "owls"\n[module_services]\nowls = "http://127.0.0.1:1"\n'
    (tmp_path / "toolfleet.toml").write_text(toml)
    with up(tmp_path, None) as fleet:
        assert "two modules named 'owls'" in fleet.said().replace("\n", " ")
        assert "two modules named 'owls'" in toolfleet("status", cwd=tmp_path).stdout.replace("\n", " ")
