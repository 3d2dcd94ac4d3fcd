"""Tasks of MCP servers: the module accepts the call, and says where it is until it has ended."""

from pathlib import Path

import pytest

from support.hosts.mcp_server import hosted_server, http_nest, stdio

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_task_is_followed_to_its_end(tmp_path: Path, transport: str) -> None:
    """It is running until the server says that it has completed, and then its result is the call's."""
    notes = tmp_path / "notes"
    async with http_nest(notes) as (http, _):
        server = stdio(notes) if transport == "stdio" else http
        async with hosted_server(server, notes) as served:
            accepted = await served.call("brood")
            assert (accepted.success, bool(accepted.handle)) == (False, True)

            running = await served.client.status(accepted.call_id, accepted.handle)
            assert (running["state"], running["message"], running["poll_after_seconds"]) == ("running", "warm", 0.1)
            (tmp_path / "hatched").touch()
            done = await served.client.status(accepted.call_id, accepted.handle)
            assert (done["state"], done["success"], done["result"]) == ("done", True, "three chicks")
            assert served.noted().count("brood ") == 1


async def test_a_task_that_nobody_wants_is_cancelled(tmp_path: Path) -> None:
    """And one that the server knows no more is unknown, never undone."""
    notes = tmp_path / "notes"
    async with hosted_server(stdio(notes), notes) as served:
        first, second = await served.call("brood"), await served.call("brood")
        ended = await served.client.status(first.call_id, first.handle, cancel=True)
        assert (ended["state"], ended["success"], ended["effect_state"]) == ("done", False, "unknown")

        assert (await served.settled("die")).effect_state == "unknown"
        assert (await served.settled("echo")).success
        assert (await served.client.status(second.call_id, second.handle))["state"] == "unknown"


async def test_an_older_server_makes_no_tasks(tmp_path: Path) -> None:
    """Its calls end as they always did."""
    notes = tmp_path / "notes"
    async with hosted_server(stdio(notes, "--old"), notes) as served:
        assert (await served.call("brood")).success
