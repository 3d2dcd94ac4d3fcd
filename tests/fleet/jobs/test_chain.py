"""The chain without a human: an agent has a site built, is woken when it is ready, and deploys it; once, whatever dies."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from support.core.chain import WISH, Chain, User, chain
from support.servers.plain_http import PLAIN
from support.waiting import PATIENCE_SECONDS
from toolfleet import Caller, Conversation, Poll, ToolCall, ToolFleet

_HASTY_CORE = "support.core.dying_core:app"
_DEATHS = "deaths"
_EVERY_TURN = ["user", "model", "tools", "model", "tools", "model", "wake", "model", "tools", "model"]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """One fleet with its core for all tests here, each with a user of its own."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / _DEATHS).mkdir()
    hasty = {"DIE_AT": str(folder / _DEATHS)}
    with chain(folder, core=_HASTY_CORE, env=hasty, visibility_timeout=3) as staged:
        yield staged


def check(user: User) -> None:
    """The site is served, its user was told, and everything was done once."""
    answer = user.hears()
    page = httpx.get(answer.rpartition(" ")[2], timeout=PATIENCE_SECONDS, trust_env=False, verify=PLAIN)

    assert "<title>Build me a site about owls" in page.text, answer
    assert user.sources() == _EVERY_TURN
    assert len(user.workspaces()) == 1
    assert len(user.releases()) == 1
    for tool in ("claude_code.run_task", "scheduler.add_job", "deployer.deploy"):
        assert len(user.executed(tool)) == 1, tool


def test_a_site_is_built_and_deployed_and_nobody_waits(staged: Chain) -> None:
    """The turn ends with a job; its end wakes the conversation, and the model deploys the workspace."""
    ada = staged.user("ada")

    assert "You need not wait" in ada.say(WISH)
    check(ada)


def _kill_the_core(staged: Chain) -> None:
    staged.children["core"].kill()


def _kill_the_worker(staged: Chain) -> None:
    staged.children["worker"].kill()


def _kill_all_three(staged: Chain) -> None:
    for child in staged.children.values():
        child.kill()


def _kill_redis(staged: Chain) -> None:
    with staged.redis.restarted():
        pass


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(_kill_the_core, marks=pytest.mark.slow),  # it dies among all three as well
        pytest.param(_kill_the_worker, marks=pytest.mark.slow),
        _kill_all_three,
        _kill_redis,
    ],
)
def test_what_dies_while_the_job_waits_changes_nothing(staged: Chain, kill: Callable[[Chain], None]) -> None:
    """Core, worker, beat or Redis: the job is a record, and its end is heard of once."""
    user = staged.user(f"waits{kill.__name__}")
    user.say(WISH)
    kill(staged)
    check(user)


@pytest.mark.parametrize(
    ("kill", "attempts"),
    [  # deploying is idempotent
        (_kill_the_core, 1),
        pytest.param(_kill_the_worker, 2, marks=pytest.mark.slow),  # it dies among all three as well
        (_kill_all_three, 2),
        (_kill_redis, 1),
    ],
)
def test_what_dies_while_the_agent_deploys_deploys_once(
    staged: Chain, kill: Callable[[Chain], None], attempts: int
) -> None:
    """Killed while the module is at it: one call, one release, and the agent hears of it."""
    user = staged.user(f"deploys{kill.__name__}")
    user.say(WISH)
    before = staged.began("deployer.deploy")
    with staged.frozen("deployer"):
        staged.until(lambda: staged.began("deployer.deploy") > before or None, "the deployment has begun")
        kill(staged)
    check(user)

    assert user.executed("deployer.deploy")[0]["attempts"] == attempts


def _all(positions: range) -> list[str]:
    return [f"{when} {position}" for position in positions for when in ("before", "after")]


@pytest.mark.parametrize(
    "points",
    [
        # A task, a job, a deployment that nobody has written down yet; a wake-up that was, and the mark of its end.
        pytest.param(["before 2", "before 4", "after 6", "before 8", "after 9"], id="where something was done"),
        pytest.param(_all(range(6)), id="the user's turn", marks=pytest.mark.slow),
        pytest.param(_all(range(6, 10)), id="the wake-up's turn", marks=pytest.mark.slow),
    ],
)
def test_the_core_dies_before_and_after_everything_that_it_writes(
    staged: Chain, points: list[str], request: pytest.FixtureRequest
) -> None:
    """A death before and after a message of a turn, and each thing is done once: a task, a job, a deployment, an answer."""
    user = staged.user(f"dies {request.node.name}")
    starts = staged.children["core"].starts
    for point in points:
        (staged.folder / _DEATHS / point).touch()
    user.say(WISH)
    check(user)

    staged.until(lambda: staged.children["core"].starts == starts + len(points) or None, "it has died each time")
    assert list((staged.folder / _DEATHS).iterdir()) == []


async def test_a_program_starts_the_job_and_the_conversation_is_woken(staged: Chain) -> None:
    """The same without the scheduler's tools: `fleet.jobs.start` with the start, the poll and where it comes from."""
    user = staged.user("program")
    user.say("hello")
    start = ToolCall(tool_name="claude_code.run_task", arguments={"prompt": WISH})
    status = {"task_id": {"$from": "task_id"}}
    poll = Poll(tool_name="claude_code.task_status", arguments=status, interval_seconds=1)
    place = Conversation(conversation_id=user.conversation_id)
    caller = Caller(user_id=user.id, permission="admin", allowed_modules="*")
    async with ToolFleet(settings=staged.settings) as fleet:
        job = await fleet.jobs.start(start, poll, conversation=place, caller=caller)

    assert job.conversation_id == user.conversation_id
    assert user.hears().startswith("Your site is ready")
    assert len(user.executed("deployer.deploy")) == 1


def test_a_task_that_fails_is_told_and_not_deployed(staged: Chain) -> None:
    """The wake-up says so, and the model deploys nothing."""
    user = staged.user("unlucky")
    user.say(f"{WISH}\nagent: fail")

    assert user.hears().startswith("It could not be built")
    assert user.releases() == []
    assert user.executed("deployer.deploy") == []


def test_a_file_sent_to_the_core_is_in_its_users_list(staged: Chain) -> None:
    """`file_manager.list_files`, another process, shows it to its user and to nobody else."""
    carl, bob = staged.user("carl"), staged.user("bob")
    carl.say("look", files=[{"name": "owls.csv", "content_base64": "ZGF5LG93bHMK"}])

    assert carl.say("which files have I?", "m2") == "You have these files: owls.csv."
    assert bob.say("which files have I?") == "You have no files."
