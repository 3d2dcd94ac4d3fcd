"""What becomes of a module when the programs that it has started take all the memory there is."""

import json
from pathlib import Path

import pytest

from support.modules.example_modules import running
from support.modules.workshop import agent, claude_code, finished, result
from support.programs.memory_groups import memory_group

# Many that are each smaller than the module, so that the kernel would choose the module.
GREEDY = """
import os, time
for _ in range(14):
    if os.fork() == 0:
        hoard = bytearray(40 * 2**20)
        for place in range(0, len(hoard), 4096): hoard[place] = 1
        time.sleep(20)
        os._exit(0)
{then}
"""
MEGABYTES = 300


@pytest.mark.slow
async def test_a_program_that_takes_all_memory_goes_before_its_module(tmp_path: Path) -> None:
    """The kernel kills the program, not the module or what watches the program; the next program runs."""
    with running("code_executor", tmp_path) as module, memory_group(MEGABYTES) as group:
        assert module.process is not None
        group.take(module.process.pid)
        eaten = await module("run_python", code=GREEDY.format(then="print(os.wait()[1])"))
        kills, after = group.kills, await module("run_python", code="print('well')")

        assert kills > 0
        assert eaten["success"], eaten
        assert eaten["result"]["exit_code"] == -9 or json.loads(eaten["result"]["stdout"]) == 9
        assert after["result"]["stdout"] == "well\n"
        assert module.process.poll() is None
        module.process.terminate()
        module.process.wait()


@pytest.mark.slow
async def test_an_agent_that_takes_all_memory_goes_before_its_module(tmp_path: Path) -> None:
    """So that what it was is told, and others' tasks go on."""
    code = GREEDY.format(then="raise SystemExit(os.wait()[1])")
    with claude_code(tmp_path, command=agent(code), outlive=False) as module, memory_group(MEGABYTES) as group:
        assert module.process is not None
        group.take(module.process.pid)
        task = await result(module, "run_task", prompt="x")
        done = await finished(module, task["task_id"])

        assert group.kills > 0
        assert (done["status"], done["exit_code"]) in {("failed", -9), ("failed", 9)}
        assert module.process.poll() is None
        module.process.terminate()
        module.process.wait()
