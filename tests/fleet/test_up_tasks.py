"""`toolfleet up` and the example modules whose work goes on after a call: build, deploy, and end with the fleet."""

import signal
from pathlib import Path
from typing import Any

import httpx

from support.up import call, up
from support.waiting import wait_until_sync
from support.workshop import processes_of

ADA = ("--user", "ada", "--permission", "admin")


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
        assert "<h1>Owls</h1>" in httpx.get(deployed["url"], trust_env=False).text

        endless = result("claude_code.run_task", "prompt=Owls\nagent: hang")
        agent = f"{endless['task_id']}/prompt.txt"
        wait_until_sync(lambda: any(agent in command for command in processes_of(tmp_path).values()), "it runs")
        fleet.process.send_signal(signal.SIGINT)
        fleet.process.wait(60)

    wait_until_sync(lambda: not processes_of(tmp_path), "nothing is left running", seconds=15)
