"""`deployer` over HTTP: sites and processes, what takes over when, and what a project may not do."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.modules.example_modules import Module
from support.modules.workshop import (
    commands_in,
    deployer_here,
    make_workspace,
    printed,
    processes_of,
    refusal,
    restarted,
    result,
    until,
)
from support.servers.plain_http import PLAIN
from support.waiting import wait_until

# An HTTP server that says who it is, and answers /health as the file `health` in its data folder says: a status, or `hang`.
SERVER = """
import http.server, os, pathlib, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = 200, sys.argv[1].encode()
        if self.path == "/health":
            word = health.read_text().split()[asked[0] % len(health.read_text().split())] if health.exists() else "200"
            asked[0] += 1
            time.sleep(600 if word == "hang" else 0)
            status = int(word)
        elif self.path == "/env":
            body = repr(dict(os.environ)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
asked, health = [0], pathlib.Path(os.environ["HOME"], "health" + sys.argv[1])
if len(sys.argv) > 2:
    health.write_text(sys.argv[2])
print("serving", sys.argv[1], flush=True)
http.server.ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def module(folder: Path) -> Iterator[Module]:
    with deployer_here(folder, health_seconds=1, restart_seconds=0.02) as running:
        yield running


def site(folder: Path, name: str, text: str, *, owner: str = "ada") -> str:
    files = {"dist/index.html": text, "dist/sub/page.html": "a page", "dist/.secret": "no", "notes.txt": "no"}
    return str(make_workspace(folder, name, files, owner=owner))


def program(folder: Path, name: str, *words: str) -> str:
    """A workspace with a server that says the first word, and answers its health check with the second."""
    declared = json.dumps({"command": ["python", "server.py", *words], "health": "/health"})
    return str(make_workspace(folder, name, {"server.py": SERVER, "deploy.json": declared}))


async def get(url: str, path: str = "") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        return await client.get(url + path)


async def status_of(url: str, target: str) -> int:
    """What a site says to a target that is sent as it stands: a client would resolve its dots first."""
    there = httpx.URL(url)
    reader, writer = await asyncio.open_connection(there.host, there.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: {there.host}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def test_a_site_is_served_until_it_is_stopped(folder: Path, module: Module) -> None:
    """What was built, and nothing else of the workspace; the workspace may go."""
    path = site(folder, "t1", "Owls")
    deployed = await result(module, "deploy", project_path=path, name="owls")
    (Path(path) / "dist/index.html").write_text("changed")
    named = {"deployment_id": deployed["deployment_id"]}

    assert (deployed["status"], deployed["kind"], deployed["releases"]) == ("running", "static", [deployed["release"]])
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", deployed["url"])
    assert (await get(deployed["url"])).text == "Owls"
    assert (await get(deployed["url"], "sub/page.html")).text == "a page"
    (folder / "deployments" / deployed["deployment_id"] / "releases" / "notes.txt").write_text("beside the release")
    assert await status_of(deployed["url"], "/sub/page.html") == httpx.codes.OK
    for hidden in ("/.secret", "/../notes.txt", "/%2e%2e/notes.txt", "/sub/../../notes.txt", "//etc/passwd"):
        assert await status_of(deployed["url"], hidden) == httpx.codes.NOT_FOUND, hidden
    assert await result(module, "deployment_status", **named) == deployed
    assert await result(module, "list_deployments") == [deployed]

    stopped = await result(module, "stop_deployment", **named)
    assert (stopped["status"], stopped["url"]) == ("stopped", None)
    with pytest.raises(httpx.ConnectError):
        await get(deployed["url"])
    assert await result(module, "stop_deployment", **named) == stopped


async def test_deploying_the_same_again_changes_nothing(folder: Path, module: Module) -> None:
    """Also at the same time; a sub-folder of the workspace is a project, too."""
    path = site(folder, "t1", "Owls")
    first, *others = await asyncio.gather(*(result(module, "deploy", project_path=path) for _ in range(4)))
    below = await result(module, "deploy", project_path=f"{path}/dist", name="below")

    assert others == [first] * 3
    assert first["name"] == "t1"
    assert (await get(below["url"])).text == "Owls"
    releases = folder / "deployments" / first["deployment_id"] / "releases"
    assert [each.name for each in releases.iterdir()] == [first["release"]]


async def test_a_new_release_takes_over_and_goes_back(folder: Path, module: Module) -> None:
    """The address stays; going back needs neither the workspace nor a build."""
    one = await result(module, "deploy", project_path=site(folder, "t1", "one"), name="owls")
    two = await result(module, "deploy", project_path=site(folder, "t2", "two"), name="owls")
    assert (await get(two["url"])).text == "two"
    three = await result(module, "deploy", project_path=program(folder, "t3", "three"), name="owls")
    assert (await get(three["url"])).text == "three"
    assert one["url"] == two["url"] == three["url"]
    assert three["releases"] == [one["release"], two["release"], three["release"]]

    named = {"deployment_id": one["deployment_id"]}
    assert (await result(module, "rollback", **named))["release"] == two["release"]
    assert (await get(one["url"])).text == "two"
    assert (await result(module, "rollback", **named))["release"] == one["release"]
    assert (await get(one["url"])).text == "one"
    assert "no release to go back to" in await refusal(module, "rollback", **named)
    await wait_until(lambda: not [it for it in processes_of(folder).values() if "server.py" in it], "three has ended")


async def test_a_process_gets_a_port_and_little_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is its own, its output is kept, and the module's end is its end."""
    monkeypatch.setenv("DATABASE_PASSWORD", "kept back")
    with deployer_here(folder) as module:
        deployed = await result(module, "deploy", project_path=program(folder, "t1", "owls"))
        environment = (await get(deployed["url"], "env")).text
        log = await printed(module, deployed["deployment_id"])

        assert (await get(deployed["url"])).text == "owls"
        assert "kept back" not in environment
        assert "DEPLOYER_" not in environment
        assert log.startswith("serving owls\n")
        assert (await result(module, "stop_deployment", deployment_id=deployed["deployment_id"]))["status"] == "stopped"
        assert not [it for it in processes_of(folder).values() if "server.py" in it]
        assert (await result(module, "deploy", project_path=program(folder, "t1", "owls")))["url"] == deployed["url"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["new", "503"], "It was not healthy within"),
        (["new", "hang"], "It was not healthy within"),
        (["new", "200 503"], "It was not healthy within"),  # good and bad in turn
        (["new", "200 x"], "It was not healthy within"),  # breaks the connection
        ([], "It ended with exit code 1. Its last words: "),  # no first word
    ],
)
async def test_what_is_not_healthy_does_not_take_over(folder: Path, words: list[str], why: str) -> None:
    """The model is told why, nothing of it is left, and the release before serves on, all the while."""
    # One that ends by itself has all the time that a busy machine takes to start it.
    with deployer_here(folder, start_seconds=0.8 if words else 20, health_seconds=0.3) as module:
        old = await result(module, "deploy", project_path=site(folder, "t1", "old"), name="owls")
        said = await refusal(module, "deploy", project_path=program(folder, "t2", *words), name="owls")
        after = await result(module, "deployment_status", deployment_id=old["deployment_id"])

        assert re.match(rf"Release \w+ did not take over, and {old['release']} still serves\. ", said)
        assert why in said
        assert after == old
        assert (await get(old["url"])).text == "old"
        assert not [it for it in processes_of(folder).values() if "server.py" in it]
        assert len(list((folder / "deployments" / old["deployment_id"] / "releases").iterdir())) == 1


async def test_a_first_release_that_fails_can_be_looked_at(folder: Path) -> None:
    """It is shown as failed, with its reason and its log; the next one may do better."""
    with deployer_here(folder, start_seconds=2) as module:
        await refusal(module, "deploy", project_path=program(folder, "t1", "owls", "500"), name="owls")
        (failed,) = await result(module, "list_deployments")
        log = await result(module, "deployment_logs", deployment_id=failed["deployment_id"])

        assert (failed["status"], failed["url"], failed["release"]) == ("failed", None, None)
        assert "not healthy" in failed["error"]
        assert "serving owls" in log["text"]
        assert (await result(module, "deploy", project_path=site(folder, "t2", "x"), name="owls"))["error"] is None


async def test_what_never_served_takes_no_room_for_ever(folder: Path) -> None:
    """What is no project leaves nothing; a first release that failed is removed by stopping it."""
    with deployer_here(folder, start_seconds=0.5, deployments=1) as module:
        await refusal(module, "deploy", project_path=str(make_workspace(folder, "t1", {"x": ""})), name="nothing")
        assert await result(module, "list_deployments") == []
        await refusal(module, "deploy", project_path=program(folder, "t2", "owls", "500"), name="failing")
        assert "never served" in await refusal(module, "deploy", project_path=site(folder, "t3", "x"), name="good")
        (failed,) = await result(module, "list_deployments")
        await result(module, "stop_deployment", deployment_id=failed["deployment_id"])

        assert await result(module, "list_deployments") == []
        assert not (folder / "deployments" / failed["deployment_id"]).exists()
        assert (await result(module, "deploy", project_path=site(folder, "t3", "x"), name="good"))[
            "status"
        ] == "running"


@pytest.mark.fleet
async def test_a_process_that_ends_or_hangs_is_started_again(folder: Path, module: Module) -> None:
    """At the same address; the status says that it happened, and why."""
    deployed = await result(module, "deploy", project_path=program(folder, "t1", "owls"))
    os.kill(commands_in(folder, "server.py")[0], 9)
    await restarted(module, 1, deployed["deployment_id"])
    assert (await get(deployed["url"])).text == "owls"

    (pid,) = commands_in(folder, "server.py")
    os.kill(pid, 19)  # it lives, and answers nothing
    status = await restarted(module, 2, deployed["deployment_id"])
    assert status["error"] == "It answered no more."
    assert commands_in(folder, "server.py") != [pid]


@pytest.mark.fleet
async def test_a_process_that_ends_again_and_again_is_given_up(folder: Path, module: Module) -> None:
    """It is shown as failed, its address answers 503, and deploying something better brings it back."""
    code = SERVER.replace("asked, health", "open(os.environ['HOME'] + '/n', 'a').write('x')\nasked, health")
    code = code.replace("print(", "if len(open(os.environ['HOME'] + '/n').read()) > 1: sys.exit(3)\nprint(")
    path = program(folder, "t1", "owls")
    (Path(path) / "server.py").write_text(code)
    deployed = await result(module, "deploy", project_path=path, name="owls")
    os.kill(commands_in(folder, "server.py")[0], 9)
    failed = await until(module, "deployment_status", {"failed"}, deployment_id=deployed["deployment_id"])

    assert "again and again in vain. It ended with exit code 3." in failed["error"]
    assert (await get(deployed["url"])).status_code == httpx.codes.SERVICE_UNAVAILABLE
    better = await result(module, "deploy", project_path=program(folder, "t2", "better"), name="owls")
    assert (better["status"], better["url"], better["error"]) == ("running", deployed["url"], None)
    assert (await get(better["url"])).text == "better"


@pytest.mark.parametrize(
    ("files", "kind", "error"),
    [
        ({"README.md": "x"}, None, "There is no index.html"),
        ({"index.html": "x"}, "process", "A process needs a deploy.json"),
        ({"deploy.json": "{"}, None, "deploy.json is wrong"),
        ({"deploy.json": '{"command": []}'}, None, "deploy.json is wrong at command"),
        ({"deploy.json": '{"command": "rm -rf /"}'}, None, "deploy.json is wrong at command"),
        ({"deploy.json": '{"command": ["x"], "health": "http://elsewhere/"}'}, None, "deploy.json is wrong at health"),
        ({"deploy.json": '{"command": ["x"], "port": 1}'}, None, "deploy.json is wrong at port"),
        ({"deploy.json": '{"command": ["/no/such"]}'}, None, "It could not be started."),
        ({f"{number}.txt": "" for number in range(30)} | {"index.html": "x"}, None, "more than 20 files"),
        ({"index.html": "x" * (2**20 + 1)}, None, "more than 1 MB"),
        ({"/".join(["d"] * 40) + "/x": "", "index.html": "x"}, None, "folders in each other"),
    ],
)
async def test_what_cannot_be_deployed_says_why(
    folder: Path, files: dict[str, str], kind: str | None, error: str
) -> None:
    """The model is told what to change."""
    with deployer_here(folder, project_files=20, project_mb=1) as module:
        path = str(make_workspace(folder, "t1", files))

        assert error in await refusal(module, "deploy", project_path=path, kind=kind)
