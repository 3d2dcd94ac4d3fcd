"""What the shared service does with a call, whatever the tool does."""

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import Field

from modules.service import ModuleBusy, ToolError, create_app
from support.example_modules import Module, in_process
from support.waiting import wait_until
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition


class Owls:
    """Tools that end in every way there is."""

    def __init__(self) -> None:
        self.cancelled = False
        self.hanging = asyncio.Event()

    async def count(self, *, day: Annotated[int, Field(ge=1)], rows: list[int] | None = None) -> Any:
        return {"day": day, "rows": rows}

    async def whose(self, *, user_id: str | None) -> Any:
        return user_id

    async def refuse(self) -> Any:
        raise ToolError("Owls sleep by day.")

    async def crash(self) -> Any:
        raise OSError("/secret/path is gone")

    async def turn_away(self) -> Any:
        raise ModuleBusy(retry_after_seconds=3)

    async def endless(self) -> Any:
        return float("nan")

    async def half(self) -> Any:
        return "\ud800"

    async def opaque(self) -> Any:
        return {1, 2}

    async def hang(self) -> Any:
        self.hanging.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.cancelled = True


@pytest.fixture
def tools() -> Owls:
    return Owls()


@pytest.fixture
def owls(tools: Owls) -> Module:
    names = [name for name in vars(Owls) if not name.startswith("_")]
    manifest = ModuleManifest(module_name="owls", tools=[ToolDefinition(name=f"owls.{name}") for name in names])
    return in_process("owls", create_app(manifest, tools))


async def test_a_result_comes_back(owls: Module) -> None:
    """What the tool returns is the result, next to no error."""
    assert await owls("count", day=7) == {
        "tool_name": "owls.count",
        "success": True,
        "result": {"day": 7, "rows": None},
        "error": None,
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "day: This argument is required."),
        ({"day": "soon"}, "day: Input should be a valid integer"),
        ({"day": 0}, "day: Input should be greater than or equal to 1."),
        ({"day": 1, "night": 2}, "night: There is no such argument."),
        ({"day": 1, "user_id": "eve"}, "user_id: There is no such argument."),
        ({"day": 1, "rows": ["x"] * 10_000}, "rows.3: Input should be a valid integer"),
    ],
)
async def test_wrong_arguments_are_named(owls: Module, arguments: dict[str, Any], told: str) -> None:
    """The model reads which argument is wrong and why, in few words however many are wrong."""
    reply = (await _post(owls, {"tool_name": "owls.count", "arguments": arguments})).json()
    assert not reply["success"]
    assert reply["error"].startswith("Invalid arguments for owls.count: ")
    assert told in reply["error"]
    assert len(reply["error"]) < 500


async def test_the_requests_user_counts(owls: Module) -> None:
    """A user_id that a model wrote among the arguments is overridden, also by none."""
    arguments = {"user_id": "mallory"}
    for user_id in ("ada", None):
        reply = (await _post(owls, {"tool_name": "owls.whose", "arguments": arguments, "user_id": user_id})).json()
        assert reply["result"] == user_id


async def test_a_refusal_is_told_in_the_tools_words(owls: Module) -> None:
    """`ToolError` is a failed call with its message."""
    assert (await owls("refuse"))["error"] == "Owls sleep by day."


async def test_a_crash_is_a_failed_call(owls: Module, caplog: pytest.LogCaptureFixture) -> None:
    """Any other exception is a failed call; its text, which may hold secrets, is in the log only."""
    reply = await owls("crash")
    assert not reply["success"]
    assert "OSError" in reply["error"]
    assert "secret" not in reply["error"]
    assert "/secret/path is gone" in caplog.text


@pytest.mark.parametrize("tool", ["endless", "half", "opaque"])  # NaN, half a character, a set
async def test_a_result_that_is_no_json_is_a_failed_call(owls: Module, tool: str) -> None:
    """What cannot be sent is reported, not half sent."""
    reply = await owls(tool)
    assert not reply["success"]
    assert "cannot be sent as JSON" in reply["error"]


async def test_a_busy_module_sends_the_fleet_away_for_a_while(owls: Module) -> None:
    """`ModuleBusy` is a 503 with `Retry-After`, which tells the fleet that nothing was started."""
    response = await owls.post("turn_away")
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "3"


async def test_a_huge_request_is_refused(owls: Module) -> None:
    """A request over 8 MiB is a 413."""
    response = await _post(owls, {"tool_name": "owls.count", "arguments": {"day": "1" * 9 * 2**20}})
    assert response.status_code == 413


async def test_a_client_that_hangs_up_cancels_its_call(owls: Module, tools: Owls) -> None:
    """The tool is cancelled, and the module counts it."""
    await _hang_up(owls, after=b'{"tool_name": "owls.hang"}')
    assert tools.cancelled
    health = await owls.get("/health")
    assert (health["running"], health["cancelled"]) == (0, 1)


async def test_a_client_that_hangs_up_early_starts_nothing(owls: Module, tools: Owls) -> None:
    """Half a request is no call."""
    await _hang_up(owls, after=b'{"tool_name": "ow', more=True)
    assert not tools.cancelled
    assert (await owls.get("/health"))["cancelled"] == 0


async def test_a_server_that_stops_cancels_its_calls(owls: Module, tools: Owls) -> None:
    """When the request's own task is cancelled, so is the tool."""
    request = asyncio.create_task(owls("hang"))
    await asyncio.wait_for(tools.hanging.wait(), 20)
    request.cancel()
    await asyncio.wait({request}, timeout=20)
    await wait_until(lambda: tools.cancelled, "the tool is cancelled")


def test_a_manifest_must_not_offer_what_is_not_there() -> None:
    """An app with a tool that the module lacks is refused when it is made."""
    manifest = ModuleManifest(module_name="owls", tools=[ToolDefinition(name="owls.fly")])
    with pytest.raises(TypeError, match=r"owls\.fly"):
        create_app(manifest, Owls())


async def _post(module: Module, body: dict[str, Any]) -> Any:
    async with module.client() as client:
        return await client.post("/execute", json=body)


async def _hang_up(module: Module, *, after: bytes, more: bool = False) -> None:
    """Send a request as a server would, then the news that the client is gone."""
    messages = iter(
        [{"type": "http.request", "body": after, "more_body": more}, {"type": "http.disconnect"}],
    )

    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return next(messages)

    async def send(_message: Any) -> None:
        pass

    assert module.app is not None
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/execute",
        "raw_path": b"/execute",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
    }
    async with asyncio.timeout(20):
        await module.app(scope, receive, send)
