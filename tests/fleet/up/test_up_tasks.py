"""`toolfleet up` and the example modules whose work goes on after a call: build, deploy, and end with the fleet."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from modules.command_isolation import isolation_for
from support.command import call
from support.modules.workshop import make_workspace, processes_of
from support.programs.escapes import outcomes
from support.servers.plain_http import PLAIN
from support.up import up
from support.waiting import wait_until_sync

ADA = ("--user", "ada", "--permission", "admin")


@pytest.mark.slow
def test_what_an_agent_builds_is_deployed_and_ends_with_the_fleet(tmp_path: Path) -> None:
    """By calls through the queues, in the slow lane; a task that still runs ends with the fleet, and so does the site."""
    with up(tmp_path) as fleet:

        def result(tool: str, *words: str) -> Any:
            answer = call(tool, *words, *ADA, cwd=tmp_path)
            assert answer["success"], answer
            return answer["result"]

        task = result("claude_code.run_task", "prompt=Owls\nagent: seconds 0.2")
        named = f"task_id={task['task_id']}"
        wait_until_sync(lambda: result("claude_code.task_status", named)["status"] == "completed", "it is built")
        deployed = result("deployer.deploy", f"project_path={task['workspace']}", "name=owls")
        assert "<h1>Owls</h1>" in httpx.get(deployed["url"], trust_env=False, verify=PLAIN).text

        endless = result("claude_code.run_task", "prompt=Owls\nagent: hang")
        agent = f"{endless['task_id']}/prompt.txt"
        wait_until_sync(lambda: any(agent in command for command in processes_of(tmp_path).values()), "it runs")
        fleet.process.send_signal(signal.SIGINT)
        fleet.process.wait()

    wait_until_sync(lambda: not processes_of(tmp_path), "nothing is left running")


SECRET = "hunter2-" * 6
# Says what it got at, to whoever asks.
TELL = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told, default=str).encode())
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.skipif(
    isolation_for("best", network=False, module="tests") != "namespaces", reason="this kernel gives no user namespaces"
)
def test_what_is_deployed_gets_at_nothing_of_the_fleet(tmp_path: Path) -> None:
    """No worker's environment, whose process it can neither find nor end, and no Redis; the fleet goes on."""
    with up(tmp_path, {"DATABASE_PASSWORD": SECRET}) as fleet:
        worker = psutil.Process(fleet.pid("toolfleet_workers", "fast-"))
        if os.geteuid() == 0:  # nobody else reads it
            assert worker.environ()["DATABASE_PASSWORD"] == SECRET
        port = int(str(fleet.run_file().settings["redis_url"]).split(":")[2].split("/")[0])
        attempts = {
            "environment": f"open('/proc/{worker.pid}/environ').read()",
            "processes": "len([name for name in os.listdir('/proc') if name.isdigit()]) <= 3",
            "signal": f"os.kill({worker.pid}, 15)",
            "redis": f"socket.create_connection(('127.0.0.1', {port}), 3)",
            "data": f"os.listdir({str(tmp_path / '.toolfleet' / 'redis')!r})",
        }
        files = {"app.py": outcomes(attempts) + TELL, "deploy.json": '{"command": ["python", "app.py"]}'}
        project = make_workspace(tmp_path / ".toolfleet", "t1", files)
        deployed: Any = call("deployer.deploy", f"project_path={project}", *ADA, cwd=tmp_path)["result"]
        told = json.loads(httpx.get(deployed["url"], trust_env=False, verify=PLAIN).text)

        assert told == {
            "environment": "FileNotFoundError",
            "processes": True,
            "signal": "ProcessLookupError",
            "redis": "ConnectionRefusedError",
            "data": "FileNotFoundError",
        }
        assert worker.is_running()
        assert call("deployer.list_deployments", *ADA, cwd=tmp_path)["success"]
    wait_until_sync(lambda: not processes_of(tmp_path), "nothing is left running")
