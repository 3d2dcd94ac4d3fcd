"""What a host counts for Prometheus."""

import re
from pathlib import Path

import httpx

from support.hosts.host_process import folder_host_process
from support.metrics.scraping import names_in, scrape, sum_of
from support.servers.plain_http import PLAIN
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import held_port


def test_a_host_counts_and_times_the_requests_of_its_module(tmp_path: Path) -> None:
    """By status; only those of tools are timed, and no path that somebody makes up is a label."""
    with held_port() as port, folder_host_process(tmp_path / "owls", env={"TOOLFLEET_METRICS_PORT": str(port)}) as host:
        wait_until_sync(lambda: re.search(r"served at (http://\S+)", host.said()), "it listens")
        url = re.findall(r"served at (http://\S+)", host.said())[0]
        wait_until_sync(lambda: _status(f"{url}/health") == 200, "it answers")
        call = {"tool_name": "owls.hoot", "arguments": {"day": 2}, "call_id": "1", "user_id": "ada"}
        answer = httpx.post(f"{url}/execute", json=call, verify=PLAIN)
        assert _status(f"{url}/made/up") == 404
        said = scrape(port)

        status = str(answer.status_code)
        assert sum_of(said, "toolfleet_host_requests_total", module="owls", status=status) >= 1
        assert sum_of(said, "toolfleet_host_requests_total", module="owls", status="404") == 1
        assert sum_of(said, "toolfleet_host_request_seconds_count", module="owls") == 1
        wait_until_sync(lambda: "toolfleet_loop_lag_seconds_count" in names_in(scrape(port)), "its loop is measured")
        assert "made" not in str(said)


def _status(url: str) -> int:
    try:
        return httpx.get(url, verify=PLAIN).status_code
    except httpx.ConnectError:
        return 0
