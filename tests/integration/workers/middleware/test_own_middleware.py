"""Classes of the operators' own around attempts in a worker: in order, and held to their word."""

from typing import Any, ClassVar

import pytest

from support.published_call import published, sealed_apart
from support.workers.known_tools import FewTools
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.own_classes import OwnClasses, ProceedWithCall
from toolfleet_registry.contracts import Caller, PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import UNBOUNDED, Attempt, Lease, Outcome
from toolfleet_registry.settings import load_settings
from toolfleet_workers.middleware import OwnMiddleware
from toolfleet_workers.runner import CallRunner

SUCCESS = Attempt(Outcome.SUCCESS, ToolResult.ok("owls.count", 7))
HERE = __name__


class Marked:
    """Adds its mark to the arguments on the way in, and notes when it comes out."""

    out: ClassVar[list[str]] = []

    def __init__(self, mark: str) -> None:
        self.mark = mark

    async def __call__(self, call: PublishedCall, proceed: ProceedWithCall) -> Attempt:
        marks = [*call.arguments.get("marks", []), self.mark]
        attempt = await proceed(call.model_copy(update={"arguments": {"marks": marks}}))
        self.out.append(self.mark)
        return attempt


class Misbehaving:
    """Does what it must not."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def __call__(self, call: PublishedCall, proceed: ProceedWithCall) -> Any:
        if self.how == "twice":
            await proceed(call)
        if self.how == "other":
            call = call.model_copy(update={"caller": Caller(user_id="eve", permission="owner")})
        if self.how == "raises":
            raise ValueError("no")
        if self.how == "exits":
            raise SystemExit(3)
        attempt = await proceed(call)
        return None if self.how == "nothing" else attempt


class Module:
    """Notes the calls that it gets."""

    def __init__(self) -> None:
        self.calls = list[PublishedCall]()

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt:
        del seconds, lease
        self.calls.append(call)
        return SUCCESS


async def run(
    *middleware: dict[str, object], agent: str | None = "own", trusted: str = HERE, apart: bool = False
) -> tuple[Attempt, list[PublishedCall]]:
    settings = load_settings(agents={"own": {"middleware": list(middleware)}}, trusted_middleware_namespaces=trusted)
    classes, module = OwnClasses(settings, runs_in="worker"), Module()
    own = OwnMiddleware(FewTools(ToolDefinition(name="owls.count")), KnownProfiles(settings, own=classes), classes)
    runner = CallRunner(module, [own])  # type: ignore[arg-type] # it is only asked to execute
    call = published("owls.count", caller=Caller(user_id="ada", permission="owner", allowed_modules="*", agent=agent))
    call = sealed_apart(call) if apart else call
    return await runner.run(call, seconds=5, lease=UNBOUNDED), module.calls


def marked(mark: str, **more: object) -> dict[str, object]:
    return {"name": f"{HERE}:Marked", "mark": mark, **more}


async def test_they_stand_in_the_order_of_the_profile() -> None:
    """The first is the outermost; what is for other tools, or runs in agents, is left out."""
    Marked.out.clear()
    attempt, (call,) = await run(
        marked("a"),
        {"name": "limits", "daily_limit": 3},
        marked("b"),
        marked("c", tools=["cats.*"]),
        marked("d", runs_in="agent"),
    )

    assert attempt is SUCCESS
    assert call.arguments == {"marks": ["a", "b"]}
    assert Marked.out == ["b", "a"]


async def test_callers_without_that_agent_have_none() -> None:
    """Nothing stands around their calls."""
    attempt, (call,) = await run(marked("a"), agent=None)

    assert (attempt, call.arguments) == (SUCCESS, {"query": "owls"})


@pytest.mark.parametrize(("how", "ran"), [("twice", 1), ("other", 0), ("raises", 0), ("exits", 0), ("nothing", 1)])
async def test_one_that_breaks_its_word_ends_the_attempt(how: str, ran: int) -> None:
    """As a defect: `internal`, and whether the effect has happened is unknown. No call is made twice, or by another caller."""
    attempt, calls = await run({"name": f"{HERE}:Misbehaving", "how": how})

    assert (attempt.outcome, attempt.result.error_code, attempt.result.effect_state) == (
        Outcome.UNKNOWN,
        "internal",
        "unknown",
    )
    assert len(calls) == ran


async def test_what_cannot_be_had_any_more_refuses_the_call() -> None:
    """So does an agent whose profile has gone meanwhile."""
    for middleware, agent, words in [
        (marked("a"), "own", "in none of the namespaces"),
        (marked("a"), "gone", "no profile of 'gone'"),
    ]:
        attempt, calls = await run(middleware, agent=agent, trusted="elsewhere")
        assert (attempt.outcome, attempt.result.error_code, calls) == (Outcome.PERMANENT, "permission_denied", [])
        assert words in str(attempt.result.error)


async def test_arguments_that_stand_apart_are_changed_as_any_others() -> None:
    """A class gets the whole call, as of any other form: it may look at all of it."""
    _, (changed,) = await run(marked("a"), marked("b"), apart=True)
    _, (kept,) = await run({"name": f"{HERE}:Misbehaving", "how": "well"}, apart=True)

    assert (type(changed), changed.arguments) == (PublishedCall, {"marks": ["a", "b"]})
    assert (type(kept), kept.arguments) == (PublishedCall, {"query": "owls"})
