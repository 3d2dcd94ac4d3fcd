"""Classes of the operators' own over a whole fleet: in the agent, in the worker, and where they cannot be had."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import serve
from support.owls import make_module
from support.waiting import wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import Caller, SettingsError, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.agents.stored_profiles import StoredProfiles
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.settings import Settings
from toolfleet_tasks.resources.agents import agent_of

PROGRAM = """
from toolfleet import ToolResult
from toolfleet.middleware import Attempt, Outcome

class Stamp:
    def __init__(self, text):
        self.text = text
    async def __call__(self, call, proceed):
        if "stop" in call.arguments:
            return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "permission_denied", "stopped"))
        return await proceed(call.model_copy(update={"arguments": {**call.arguments, "stamp": self.text}}))
"""
STAMP = {"name": "ownfleet.worker:Stamp", "text": "seen"}


class Trimmed:
    """Takes spaces off texts in the agent; refuses a call with nothing in it, and fails for one that says so."""

    async def __call__(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """As `CallMiddleware`."""
        if "fail" in call.arguments:
            raise RuntimeError("it was told to")
        if not call.arguments:
            return ToolResult.refused(call.tool_name, "invalid_arguments", f"{caller.user_id} says nothing.")
        return call.model_copy(update={"arguments": {name: str(text).strip() for name, text in call.arguments.items()}})


TRIMMED = {"name": f"{__name__}:Trimmed", "runs_in": "agent"}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url, serve(make_module()) as owls:
        more = {"trusted_middleware_namespaces": frozenset({"ownfleet", __name__})}
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def worker(bed: TestBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    package = tmp_path_factory.mktemp("programs") / "ownfleet"
    package.mkdir()
    (package / "worker.py").write_text(PROGRAM)
    with bed.worker(env={"PYTHONPATH": str(package.parent)}) as worker:
        yield worker


@pytest.fixture
def stored(bed: TestBed) -> Iterator[StoredProfiles]:
    opened = StoredProfiles.of(bed.settings)
    yield opened
    for name in opened.read():
        opened.remove(name, by="a test")
    opened.close()


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


async def came(fleet: ToolFleet, agent: str, **arguments: object) -> ToolResult:
    caller = Caller(user_id="ada", permission="owner", allowed_modules="*", agent=agent)
    return await fleet.call(ToolCall(tool_name="owls.echo", arguments=dict(arguments)), caller, timeout=20)


async def known(fleet: ToolFleet, agent: str) -> None:
    async def is_known() -> bool:
        return (await came(fleet, agent, n="1")).success

    await wait_until_answered(is_known, "agent and worker know the profile")


def profile(*middleware: object) -> AgentProfile:
    return AgentProfile.model_validate({"middleware": list(middleware)})


async def test_both_sides_have_their_say(fleet: ToolFleet, stored: StoredProfiles) -> None:
    """What the agent's leaves of the arguments the worker's gets; each may refuse, and one that fails refuses, too."""
    stored.put("own", profile(TRIMMED, STAMP), by="ada")
    await known(fleet, "own")

    assert (await came(fleet, "own", text=" owl ")).result == {"text": "owl", "stamp": "seen"}
    for arguments, code, words in [
        ({}, "invalid_arguments", "ada says nothing."),
        ({"fail": "1"}, "internal", "it raised RuntimeError"),
        ({"stop": "1"}, "permission_denied", "stopped"),
    ]:
        result = await came(fleet, "own", **arguments)
        assert (result.error_code, result.effect_state, words in str(result.error)) == (code, "none", True)


async def test_a_stored_profile_that_cannot_be_applied_leaves_nothing(
    fleet: ToolFleet, bed: TestBed, stored: StoredProfiles, worker: WorkerProcess
) -> None:
    """The worker refuses its agent's calls; its log says why, and so does what operators are shown, until another version is there."""
    stored.put("broken", profile({"name": "ownfleet.nothing:Stamp"}), by="ada")

    async def is_refused() -> bool:
        result = await came(fleet, "broken", n="1")
        return "cannot be imported: ModuleNotFoundError" in str(result.error)

    await wait_until_answered(is_refused, "the worker has tried")
    assert "agent_profile_not_applied" in worker.said()
    assert "ownfleet.nothing" in str(agent_of("broken", bed.settings).fault)
    stored.put("broken", profile(STAMP), by="ada")
    assert agent_of("broken", bed.settings).fault is None
    await known(fleet, "broken")


async def test_settings_that_cannot_be_applied_are_refused_at_the_start(bed: TestBed, elsewhere: Path) -> None:
    """In an agent, too, in one sentence with the place."""
    (elsewhere / "toolfleet.toml").write_text(
        '[agents.own]\n[[agents.own.middleware]]\nname = "elsewhere:Trimmed"\nruns_in = "agent"\n'
    )
    settings = Settings(redis_url=bed.redis_url, agents={"own": profile({"name": "elsewhere:X", "runs_in": "agent"})})
    with pytest.raises(SettingsError, match=r"line 2: agents, at own\.middleware\.0: 'elsewhere:X' is in none of the"):
        async with ToolFleet(settings=settings):
            pass
