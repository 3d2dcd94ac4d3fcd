"""What the document about tools in files promises, as an author, an operator and an agent's model see it: one fleet of `toolfleet up`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.command import call, run
from support.servers.plain_http import PLAIN
from support.up import Up, up
from support.waiting import wait_until_sync

HEAD = "from toolfleet.sdk import tool\n"
TOOL = '\n\n@tool(effect="read")\ndef {name}(path: str) -> str:\n    """Read {name}."""\n    return "{name} " + path\n'
FAILING = '\n\n@tool\ndef refuse(path: str) -> str:\n    """Refuse."""\n    raise ValueError("no such path")\n'
FILES = {
    "file_reader.py": HEAD + TOOL.format(name="file_reader"),
    "git_helper.py": "import os, subprocess\n" + HEAD + TOOL.format(name="git_helper"),
    "broken.py": HEAD + TOOL.format(name="broken") + "def (\n",
    "missing.py": HEAD + "import no_such_package\n" + TOOL.format(name="missing"),
    "ending.py": HEAD + "import os\nos._exit(3)\n" + TOOL.format(name="ending"),
    "plain.py": HEAD + FAILING,
}
LANGCHAIN = 'from langchain_core.tools import tool\n\n\n@tool\ndef reverse(text: str) -> str:\n    """Reverse."""\n    return text[::-1]\n'
TOML = """
trusted_tool_namespaces = ["custom.tools"]

[hosts.custom]
tools = ["custom.tools.count", "custom.toolsmith.count", "os.getcwd"]

[agents.production]
mode = "primary"
tools = ["tools.file_reader", "custom.*"]

[[agents.production.middleware]]
name = "tool_retry"
max_retries = 3

[[agents.production.middleware]]
name = "tool_call_limit"
run_limit = 2

[[agents.production.middleware]]
name = "pii"
pii_types = ["email", "phone"]

[[agents.production.middleware]]
name = "human_in_the_loop"
approve_tools = ["custom.count"]
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A folder of tools of which some do not load, a package with functions, and a profile; no test ends it."""
    folder = tmp_path_factory.mktemp("home")
    tools, package = folder / ".toolfleet" / "tools", folder / "custom"
    for path in (tools, package):
        path.mkdir(parents=True)
    for name, text in FILES.items():
        (tools / name).write_text(text)
    for name in ("__init__.py", "tools.py", "toolsmith.py"):
        (package / name).write_text('def count(to: int) -> int:\n    """Count."""\n    return to\n')
    (folder / "toolfleet.toml").write_text(TOML)
    with up(folder) as running:
        yield running


def asked(fleet: Up, path: str, method: str = "GET") -> httpx.Response:
    key = (fleet.folder / ".toolfleet" / "gateway-key").read_text().strip()
    url = f"{fleet.run_file().gateway_url}{path}"
    return httpx.request(method, url, headers={"authorization": f"Bearer {key}"}, verify=PLAIN)


def listed(fleet: Up) -> set[str]:
    tools = json.loads(run("tools", "list", "--json", "--ignore-errors", cwd=fleet.folder).out)
    return {tool["name"] for tool in tools}


def faulty(fleet: Up) -> dict[str, str]:
    """The files that do not load, or what was found in them, each with its kind of error."""
    return {Path(one["file"]).name: one["error_type"] for one in asked(fleet, "/tools/errors").json()["errors"]}


def called(fleet: Up, tool: str, *words: str) -> dict[str, Any]:
    """A call of the agent `production`."""
    agent = ("--agent", "production", "--user", "ada", "--run-id", "r")
    return json.loads(run("call", tool, *words, *agent, "--json", cwd=fleet.folder).out)  # type: ignore[no-any-return] # a result


def test_tools_are_listed_with_name_source_and_module(fleet: Up) -> None:
    """`GET /tools` has what the document shows, and `GET /tools/{name}` one of them; another name is 404 with near ones."""
    found = asked(fleet, "/tools").json()
    reader = {tool["name"]: tool for tool in found["tools"]}["tools.file_reader"]

    assert found["count"] == len(found["tools"])
    assert reader["source"] == str(fleet.folder / ".toolfleet" / "tools" / "file_reader.py")
    assert reader["module"] == "_toolfleet_tools.file_reader"
    assert asked(fleet, "/tools/tools.file_reader").json() == reader
    assert asked(fleet, "/tools/file_reader").status_code == 404
    assert "tools.file_reader" in asked(fleet, "/tools/tools.file_readr").text


def test_each_file_that_does_not_load_is_an_error_and_the_rest_is_served(fleet: Up) -> None:
    """`GET /tools/errors` names the file, the kind, the words and the time of each."""
    found = asked(fleet, "/tools/errors").json()
    kinds = {Path(error["file"]).name: error["error_type"] for error in found["errors"]}

    assert found["count"] == len(found["errors"])
    assert kinds["broken.py"] == "SyntaxError"
    assert kinds["missing.py"] == "ImportError"
    assert kinds["git_helper.py"] == "SecurityError"
    assert kinds["ending.py"] in {"ProcessEnded", "SecurityError"}
    assert all(error["message"] and error["timestamp"] > 1_700_000_000 for error in found["errors"])
    assert {"tools.file_reader", "tools.git_helper"} <= listed(fleet)
    assert not {"tools.broken", "tools.missing", "tools.ending"} & listed(fleet)
    assert "broken.py" in fleet.log("tools")


def test_only_functions_of_trusted_namespaces_are_tools(fleet: Up) -> None:
    """`custom.tools` is one; `custom.toolsmith` and `os` are not, and say so."""
    kinds = {error["file"]: error["error_type"] for error in asked(fleet, "/tools/errors").json()["errors"]}

    assert "custom.count" in listed(fleet)
    assert kinds["custom.toolsmith.count"] == kinds["os.getcwd"] == "UntrustedNamespace"


def test_the_list_shows_errors_and_ends_with_1(fleet: Up) -> None:
    """Also at a gateway; one that is not there is named."""
    port = str(fleet.run_file().gateway_url).rpartition(":")[2]
    here, there = (
        run("tools", "list", *where, cwd=fleet.folder) for where in ((), ("--host", "127.0.0.1", "--port", port))
    )
    away = run("tools", "list", "--host", "127.0.0.1", "--port", "9", cwd=fleet.folder)

    assert here.code == there.code == 1
    assert "SyntaxError" in here.err
    assert "SyntaxError" in there.err
    assert "tools.file_reader" in there.out
    assert away.code != 0
    assert "127.0.0.1:9" in away.err


def test_tools_are_reloaded_by_route_and_command(fleet: Up) -> None:
    """Both say how many there are and what does not load; the command ends with 1 where there is such a file."""
    found = asked(fleet, "/tools/reload", "POST").json()
    command = run("tools", "reload", cwd=fleet.folder)

    assert found["count"] >= 2
    assert "SyntaxError" in {error["error_type"] for error in found["errors"]}
    assert (command.code, "SyntaxError" in command.err) == (1, True)
    assert "tools" in command.out


def test_a_file_is_served_changed_and_gone_while_agents_run(fleet: Up) -> None:
    """A saved file is there without a restart; one that breaks keeps its version before, and events tell of it."""
    made = run("create", "tool", "echo_text", cwd=fleet.folder)
    path = fleet.folder / ".toolfleet" / "tools" / "echo_text.py"
    wait_until_sync(lambda: "tools.echo_text" in listed(fleet), "the new tool is listed")
    first = call("tools.echo_text", "text=owl", "times=2", cwd=fleet.folder)
    whole = path.read_text()
    path.write_text(whole + "def (\n")
    wait_until_sync(lambda: "echo_text.py" in faulty(fleet), "the error is known")
    second = call("tools.echo_text", "text=owl", "times=1", cwd=fleet.folder)
    path.unlink()
    wait_until_sync(lambda: "tools.echo_text" not in listed(fleet), "the tool is gone")

    assert made.code == 0
    assert first["result"] == {"text": "owl owl"}
    assert second["result"] == {"text": "owl"}


def test_a_load_error_is_an_event(fleet: Up) -> None:
    """`GET /events` has `tool_load_error`."""
    key = (fleet.folder / ".toolfleet" / "gateway-key").read_text().strip()
    path = fleet.folder / ".toolfleet" / "tools" / "late.py"
    with httpx.stream(
        "GET",
        f"{fleet.run_file().gateway_url}/events",
        headers={"authorization": f"Bearer {key}"},
        timeout=httpx.Timeout(None),
        verify=PLAIN,
    ) as events:
        lines = events.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: state"
        path.write_text(HEAD + TOOL.format(name="late") + "def (\n")
        assert any(line == "event: tool_load_error" for line in lines)
        assert "late.py" in next(line for line in lines if line.startswith("data: "))
    path.unlink()


def test_an_agent_has_its_tools_and_its_middleware(fleet: Up) -> None:
    """Its profile selects tools, limits a run, hides personal data and has a person approve; `why` names each rule."""
    told = run("why", "tools.file_reader", "--agent", "production", "--run-id", "r", cwd=fleet.folder).out
    hidden, _, third = (called(fleet, "tools.file_reader", "path=ada@example.com") for _ in range(3))

    assert all(name in told for name in ("tool_retry", "tool_call_limit", "pii"))
    assert hidden["result"] == "file_reader [EMAIL]"
    assert third["error_code"] == "rate_limited"
    assert called(fleet, "custom.count", "to=2")["error_code"] in {"approval_required", "rate_limited"}
    assert called(fleet, "tools.git_helper", "path=x")["error_code"] == "permission_denied"


def test_what_was_called_is_in_the_audit(fleet: Up) -> None:
    """Who, which tool, and how it ended; a tool that raises is a failed result, and ends nothing else."""
    refused = call("tools.refuse", "path=x", cwd=fleet.folder)
    lines = run("audit", "tail", cwd=fleet.folder).out

    assert (refused["success"], refused["error_code"]) == (False, "module_error")
    assert "(module_error)  tools.refuse" in lines
    assert call("tools.file_reader", "path=x", cwd=fleet.folder)["success"]


def test_tools_of_langchain_are_served(fleet: Up) -> None:
    """A file with its decorator, as the document's are."""
    (fleet.folder / ".toolfleet" / "tools" / "reversing.py").write_text(LANGCHAIN)
    run("tools", "reload", cwd=fleet.folder)

    assert call("tools.reverse", "text=owl", cwd=fleet.folder)["result"] == "lwo"


def test_a_profile_that_selects_nothing_is_told_of(fleet: Up) -> None:
    """Its names are those of another system: whoever puts it is told so, in words or by a refusal."""
    (fleet.folder / "elsewhere.toml").write_text('[agents.elsewhere]\ntools = ["server.app.tools.file_reader"]\n')
    put = run("agents", "put", "elsewhere", "--file", "elsewhere.toml", cwd=fleet.folder)

    assert "server.app.tools.file_reader" in put.out + put.err


def test_a_profile_is_read_from_yaml(fleet: Up) -> None:
    """As the document's `config.yaml` has it, with its name."""
    (fleet.folder / "config.yaml").write_text("name: reading\nmode: primary\ntools:\n  - tools.file_reader\n")
    put = run("agents", "put", "reading", "--file", "config.yaml", cwd=fleet.folder)

    assert put.code == 0, put.err
    assert "tools.file_reader" in run("agents", "show", "reading", cwd=fleet.folder).out
