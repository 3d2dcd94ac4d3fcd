"""How many calls one worker process holds in flight: 1,000 calls of 2 s each, and what they cost.

Run from a clone: `make bench`. Starts its own Redis, module and worker, and ends them. Prints one line a round: how
long the round took (2 s would be perfect), how many calls ran at once as the module saw it, the worker's CPU time, and
its memory before and at the height.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aiohttp import web

from toolfleet import Caller, Settings, ToolCall, ToolFleet
from toolfleet_workers.processes import spawn, stop
from toolfleet_workers.redis_server import redis_server

OWNER = Caller(permission="owner", allowed_modules="*")
READY = b"toolfleet worker ready"
START_SECONDS = 60


class SlowModule:
    """A module with one tool, `slow.wait`, which takes `seconds`; counts how many run at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running = self.most_running = 0

    async def manifest(self, _: web.Request) -> web.Response:
        """Offer the tool."""
        tool = {"name": "slow.wait", "description": "Waits.", "parameters": [], "effect": "read"}
        return web.json_response({"module_name": "slow", "description": "", "tools": [tool]})

    async def execute(self, request: web.Request) -> web.Response:
        """Wait, and answer."""
        call = await request.json()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return web.json_response({"tool_name": call["tool_name"], "success": True, "result": None, "error": None})


async def serve(module: SlowModule) -> tuple[web.AppRunner, str]:
    """Serve the module on the loopback interface."""
    app = web.Application()
    app.router.add_get("/manifest", module.manifest)
    app.router.add_post("/execute", module.execute)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}"


async def wait_for_ready(worker: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the worker consumes."""
    give_up_at = time.monotonic() + START_SECONDS
    while READY not in log.read_bytes():
        if worker.poll() is not None or time.monotonic() > give_up_at:
            sys.exit(f"the worker did not start:\n{log.read_text()}")
        await asyncio.sleep(0.05)


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


async def measure(fleet: ToolFleet, module: SlowModule, worker_pid: int, calls: int) -> str:
    """One round, as a line of text."""
    module.most_running = 0
    before, cpu, started_at = memory_mb(worker_pid), cpu_seconds(worker_pid), time.monotonic()
    height = before
    running = asyncio.ensure_future(fleet.call_many([ToolCall(tool_name="slow.wait")] * calls, OWNER))
    while not running.done():
        height = max(height, memory_mb(worker_pid))
        await asyncio.wait([running], timeout=0.1)
    took, cpu = time.monotonic() - started_at, cpu_seconds(worker_pid) - cpu
    good = sum(result.success for result in running.result())
    return (
        f"{good}/{calls} calls of {module.seconds:g} s returned in {took:.1f} s, {module.most_running} at once; "
        f"worker: {cpu:.2f} s CPU, {before:.0f} MB before, {height:.0f} MB at the height"
    )


async def main() -> None:
    """Start everything, measure, end everything."""
    options = argparse.ArgumentParser(description="Calls in flight in one worker process.")
    options.add_argument("--calls", type=int, default=1000)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    module = SlowModule(chosen.seconds)
    runner, url = await serve(module)
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as redis_url:
        settings = Settings(redis_url=redis_url, module_services={"slow": url}, worker_concurrency=chosen.calls)
        log = Path(folder) / "worker.log"
        with log.open("wb") as output:
            worker = spawn(
                [sys.executable, "-m", "celery", "-A", "toolfleet_workers.main", "worker"],
                env={
                    "TOOLFLEET_REDIS_URL": redis_url,
                    "TOOLFLEET_MODULE_SERVICES": f'{{"slow": "{url}"}}',
                    "TOOLFLEET_WORKER_CONCURRENCY": str(chosen.calls),
                    "TOOLFLEET_LOG_LEVEL": "WARNING",
                    "PYTHONUNBUFFERED": "1",
                },
                output=output,
            )
        try:
            await wait_for_ready(worker, log)
            async with ToolFleet(settings=settings) as fleet:
                for _ in range(chosen.rounds):
                    print(await measure(fleet, module, worker.pid, chosen.calls))
        finally:
            stop(worker, patience_seconds=20)
            await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
