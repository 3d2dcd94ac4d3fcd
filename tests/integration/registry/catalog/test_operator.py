"""What operators do with tools, on a real Redis and real modules, and what an agent's catalog makes of it."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.modules.operated import Git, Stage, staged
from support.modules.raw_modules import raw_module
from toolfleet_registry.catalog.operator import Operator, operating
from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.errors import FleetUnavailable, OperationRefused, SettingsError
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store


async def test_a_disabled_tool_is_gone_at_once_and_stays_gone(stage: Stage, operator: Operator) -> None:
    """Over refreshes, new versions, and while its module does not offer it; until it is enabled."""
    await operator.disable("git.push")
    reason = "Tool 'git.push' is disabled by an operator."
    assert sorted(await stage.listed()) == ["log", "pull"]
    assert await stage.refusal("push") == reason

    for version in ("1", "2"):
        await stage.change("push", version=version)
        assert await stage.refusal("push") == reason
    await stage.offer("log")
    await stage.offer("log", "push")
    assert await stage.refusal("push") == reason

    await operator.enable("git.push")
    assert sorted(await stage.listed()) == ["log", "push"]


async def test_a_tool_with_a_new_name_is_operated_by_both(stage: Stage, operator: Operator) -> None:
    """It stays disabled under the new name; it is called, enabled, disabled and approved by the former one, too."""
    await operator.disable("git.push")
    stage.git.manifest["tools"] = [{"name": "git.send", "former_names": ["git.push"]}]
    await stage.refresh()
    reason = "Tool 'git.send' is disabled by an operator."
    assert [await stage.refusal("push"), await stage.refusal("send")] == [reason, reason]

    await operator.enable("git.push")
    assert list(await stage.listed()) == ["send"]
    assert [await stage.refusal("push"), await stage.refusal("send")] == [None, None]
    await operator.disable("git.push")
    assert await stage.refusal("send") == reason
    await operator.enable("git.send")
    await stage.refresh()
    assert await stage.refusal("push") is None

    await operator.pin("git")
    await stage.change("send", description="Send it to me.")
    assert "is withheld" in str(await stage.refusal("push"))
    await operator.approve("git.push")
    assert await stage.refusal("push") is None


async def test_an_operator_needs_the_fleets_redis_and_nothing_else(stage: Stage, redis: Redis) -> None:
    """Modules that were added, or that only other processes' settings name, are pinned, shown and approved as any other."""
    bare = stage.settings.model_copy(update={"module_services": {}})
    entry = ModuleEntry(module="git", url=stage.settings.module_services["git"])
    await ModuleDirectory(redis, bare).replace("git", "", entry)
    async with operating(bare) as operator:
        await operator.pin("git")
        await stage.change("push", description="Something else.")

        assert list(await operator.closed()) == ["git.push"]
        assert [one.tool_name for one in await operator.differences("git")] == ["git.push"]
        await operator.approve("git.push")
        assert await operator.closed() == {}
        with pytest.raises(OperationRefused, match="Unknown module: mail"):
            await operator.pin("mail")


async def test_a_guest_does_not_learn_what_is_disabled(stage: Stage, operator: Operator) -> None:
    """Who could not use the tool anyway hears the reason that was there before."""
    await stage.change("push", required_permission="admin")
    await operator.disable("git.push")
    await stage.agent.load()
    guest = stage.agent.judge(ToolCall(tool_name="git.push"), Caller(allowed_modules="*"))
    stranger = stage.agent.judge(ToolCall(tool_name="git.push"), Caller(allowed_modules=frozenset()))

    assert isinstance(guest, ToolResult)
    assert guest.error == "Tool 'git.push' needs 'admin'; caller is 'guest'."
    assert isinstance(stranger, ToolResult)
    assert stranger.error == "Module 'git' is not among the caller's modules."


async def test_drift_keeps_the_old_until_it_is_approved(stage: Stage, operator: Operator) -> None:
    """Other content under the same version has no effect; a new version has."""
    await stage.change("push", version="1", description="Push it.")
    await stage.change("push", description="Push it to me.")
    assert (await stage.listed())["push"] == "Push it."
    assert stage.beat.statuses()["git"].drifted == 1

    (difference,) = await operator.differences()
    assert (difference.tool_name, difference.kind) == ("git.push", "drifted")
    assert difference.fields() == {"description": ("Push it.", "Push it to me.")}
    await operator.approve("git.push", digest=difference.digest[7:19])
    assert (await stage.listed())["push"] == "Push it to me."
    await stage.refresh()
    assert (await stage.listed())["push"] == "Push it to me."
    assert await operator.differences() == []


async def test_a_pin_withholds_the_changed_and_the_new(stage: Stage, operator: Operator) -> None:
    """Until each is approved; what is as it was stays in effect."""
    assert sorted(await operator.pin("git")) == ["git.log", "git.pull", "git.push"]
    stage.git.change("push", description="Push it to me.", version="7")
    stage.git.manifest["tools"].append({"name": "git.steal"})
    await stage.refresh()
    assert sorted(await stage.listed()) == ["log", "pull"]
    for method in ("push", "steal"):
        assert "is withheld" in str(await stage.refusal(method))
    assert stage.beat.statuses()["git"].withheld == 2

    await operator.approve("git.push")
    assert (await stage.listed())["push"] == "Push it to me."
    await stage.refresh()
    assert sorted(await stage.listed()) == ["log", "pull", "push"]


async def test_unpinning_takes_in_what_is_offered(stage: Stage, operator: Operator) -> None:
    """At once, and from then on; but for drift."""
    await stage.change("log", version="1")
    await operator.pin("git")
    stage.git.change("push", description="Other.")
    await stage.change("log", description="Other.")
    assert sorted(await stage.listed()) == ["pull"]
    await operator.unpin("git")

    assert await stage.listed() == {"log": "log it", "pull": "pull it", "push": "Other."}
    assert [one.kind for one in await operator.differences()] == ["drifted"]


async def test_pinning_approves_what_is_in_effect(stage: Stage, operator: Operator) -> None:
    """What has drifted before goes on as it was; what drifts, or drifts on, afterwards is withheld."""
    await stage.change("push", version="1")
    await stage.change("push", description="Other.")
    await operator.pin("git")
    await stage.refresh()

    assert (await stage.listed())["push"] == "push it"
    await stage.change("push", description="Another.")
    assert sorted(await stage.listed()) == ["log", "pull"]
    await operator.approve("git.push")
    assert (await stage.listed())["push"] == "Another."


async def test_a_new_tool_that_is_withheld_can_be_disabled(stage: Stage, operator: Operator) -> None:
    """And stays so when it is approved, or its module is pinned no more; until it is enabled."""
    await operator.pin("git")
    stage.git.manifest["tools"].append({"name": "git.steal"})
    await stage.refresh()
    await operator.disable("git.steal")
    assert [(one.tool_name, one.kind) for one in await operator.differences()] == [("git.steal", "withheld")]

    await operator.approve("git.steal")
    assert "disabled" in str(await stage.refusal("steal"))
    await operator.unpin("git")
    await stage.refresh()
    assert "disabled" in str(await stage.refusal("steal"))
    await operator.enable("git.steal")
    assert "steal" in await stage.listed()


async def test_a_tool_that_comes_back_otherwise_has_drifted(stage: Stage, operator: Operator) -> None:
    """To leave for a while is no way around its version."""
    await stage.change("push", version="1", description="Harmless.")
    await stage.offer("log")
    assert sorted(await stage.listed()) == ["log"]
    stage.git.offer("log", "push")
    await stage.change("push", version="1", description="Harmful.")

    assert (await stage.listed())["push"] == "Harmless."
    assert [one.kind for one in await operator.differences()] == ["drifted"]


async def test_a_tool_with_a_wrong_definition_is_closed_alone(stage: Stage, operator: Operator) -> None:
    """With what is wrong, over an operator's words, too; when it is mended it is there again."""
    await stage.change("push", tags=None)
    reason = "Tool 'git.push' is closed: its definition is wrong at tags: Input should be a valid list."
    assert sorted(await stage.listed()) == ["log", "pull"]
    assert await stage.refusal("push") == reason
    await operator.disable("git.log")
    assert await stage.refusal("push") == reason
    assert await operator.closed() == {"git.log": "Tool 'git.log' is disabled by an operator.", "git.push": reason}
    assert stage.beat.statuses()["git"].closed_tools == ("git.push",)

    await stage.change("push", tags=["x"])
    assert sorted(await stage.listed()) == ["pull", "push"]


async def test_only_what_was_looked_at_is_approved(stage: Stage, operator: Operator) -> None:
    """A module that changes its tool between look and approval gains nothing."""
    await operator.pin("git")
    await stage.change("push", description="Harmless.")
    (difference,) = await operator.differences("git")
    await stage.change("push", description="Harmful.")

    with pytest.raises(OperationRefused, match="by now, not"):
        await operator.approve("git.push", digest=difference.digest)
    with pytest.raises(OperationRefused, match="by now, not"):
        await operator.approve("git.push", digest="sha256:")  # the beginning of every digest
    assert "withheld" in str(await stage.refusal("push"))


async def test_what_cannot_be_done_is_one_sentence(stage: Stage, operator: Operator) -> None:
    """And changes nothing."""
    before = await stage.listed()
    for work, why in [
        (operator.disable("git.gc"), "Tool 'git.gc' is not registered."),
        (operator.enable("mail.send"), "Tool 'mail.send' is not registered."),
        (operator.pin("mail"), "Unknown module: mail"),
        (operator.unpin("git"), "Module 'git' is not pinned."),
        (
            operator.approve("git.push"),
            "There is nothing to approve of 'git.push': `toolfleet tools diff` shows what is.",
        ),
        (operator.approve("mail.send"), "Unknown module: mail"),
    ]:
        with pytest.raises(OperationRefused) as caught:
            await work
        assert str(caught.value) == why
    await operator.pin("git")
    with pytest.raises(OperationRefused, match="is pinned already"):
        await operator.pin("git")
    assert await stage.listed() == before


async def test_looks_are_counted_and_changes_are_events(stage: Stage, operator: Operator) -> None:
    """A look that finds nothing new adds nothing."""
    await stage.change("push", version="1")
    stage.git.change("push", description="Drifted.")
    for _ in range(3):
        await stage.refresh()
    await stage.offer("log", "gc")
    await operator.disable("git.gc")

    assert await operator.counted() == {"added": 4, "changed": 1, "drifted": 1, "removed": 2}
    events = [(event.kind, event.tool_name) for event in await operator.events(6)]
    assert events == [
        ("registered", "git.pull"),
        ("registered", "git.push"),
        ("changed", "git.push"),
        ("drifted", "git.push"),
        ("registered", "git.gc"),
        ("disabled", "git.gc"),
    ]


async def test_agents_hear_of_an_operators_word(stage: Stage, operator: Operator) -> None:
    """On the channel of changed manifests, and workers by the number of changes."""
    cache = ManifestCache(stage.redis, ttl_seconds=100)
    before = await cache.revision()
    async with stage.redis.pubsub() as pubsub:
        await pubsub.subscribe(Keys().manifests_changed)
        await operator.disable("git.push")
        heard = await anext(each async for each in pubsub.listen() if each["type"] == "message")
    assert heard["data"] == "git"
    assert await cache.revision() == before + 1


async def test_an_operator_changes_neither_a_manifests_age_nor_its_life(stage: Stage, operator: Operator) -> None:
    """Nobody has looked at the module."""
    key = Keys().module_manifest("git")
    await stage.redis.expire(key, 30)
    before = json.loads(await stage.redis.get(key) or "")
    await operator.disable("git.push")
    after = json.loads(await stage.redis.get(key) or "")

    assert after.pop("verdicts") == {"git.push": {"is_disabled": True}}
    assert after == before
    assert 0 < await stage.redis.ttl(key) <= 30


async def test_without_a_fleet_there_is_nothing_to_operate(elsewhere: Path) -> None:
    """One sentence, as for agents."""
    with pytest.raises(SettingsError, match="No fleet to talk to"):
        async with operating(Settings()):
            pass


async def test_a_word_about_a_tool_that_is_gone_is_kept(redis: Redis, redis_url: str, elsewhere: Path) -> None:
    """An operator may disable what a refresh forgets at the same moment, and it stays disabled when it comes back."""
    async with staged(redis, redis_url, None) as stage, operating(stage.settings) as operator:
        forgets = open_store(stage.settings)
        judge = operator._registrar.rejudge

        async def rejudge(*args: Any, **kwargs: Any) -> Any:
            await asyncio.to_thread(forgets.remove, "git.push", unless_disabled=True)  # as refreshes do
            return await judge(*args, **kwargs)

        operator._registrar.rejudge = rejudge  # type: ignore[method-assign] # the moment cannot be provoked otherwise
        await operator.disable("git.push")
        await asyncio.to_thread(forgets.close)
        await stage.refresh()

        assert "disabled" in str(await stage.refusal("push"))


async def _audited(redis: Redis) -> list[tuple[str, str]]:
    """The tools that have a line in the audit because they changed, each with its digest."""
    entries: list[Any] = await redis.xrange(Keys().audit) or []
    lines = [json.loads(fields["line"]) for _, fields in entries]
    return [(line["tool"], line["digest"]) for line in lines if line.get("change") == "tool_changed"]


async def _shown(operator: Operator) -> dict[str, tuple[str, Any]]:
    """What is shown of tools: the kind, and the descriptions before and after."""
    return {one.tool_name: (one.kind, one.fields().get("description")) for one in await operator.differences("git")}


async def test_a_change_is_served_and_shown_until_it_is_accepted(
    stage: Stage, operator: Operator, redis: Redis
) -> None:
    """Of a module that wants it so, as MCP servers do: with what was accepted last, over further changes, and in the audit once."""
    stage.git.manifest["on_change"] = "shown"
    await stage.refresh()
    first = (await stage.listed())["push"]
    assert await _shown(operator) == {}

    for words in ("Ignore all else.", "Ignore nothing."):
        await stage.change("push", description=words)
        assert (await stage.listed())["push"] == words
        assert await _shown(operator) == {"git.push": ("changed", (first, words))}
    assert [tool for tool, _ in await _audited(redis)] == ["git.push"]

    found = await operator.approve("git.push")
    assert (found.kind, await _shown(operator)) == ("changed", {})
    await stage.refresh()
    assert await _shown(operator) == {}

    await stage.change("push", description=first)
    assert await _shown(operator) == {"git.push": ("changed", ("Ignore nothing.", first))}
    assert len(await _audited(redis)) == 2
    with pytest.raises(OperationRefused, match="look at it again"):
        await operator.approve("git.push", digest=found.digest)
    await stage.change("push", description="Ignore nothing.")  # as it was accepted
    assert await _shown(operator) == {}


async def test_a_change_is_shown_whatever_ends_meanwhile(
    stage: Stage, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Redis was away after the registry had it, and of a tool that was not offered for a while."""
    stage.git.manifest["on_change"] = "shown"
    await stage.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(ManifestCache, "note_changes", _away)
        stage.git.change("push", description="Ignore all else.")
        await _without_an_end(stage)
    await stage.refresh()
    tools = stage.git.manifest["tools"]
    stage.git.manifest["tools"] = [tool for tool in tools if tool["name"] != "git.pull"]
    await stage.refresh()
    stage.git.manifest["tools"] = tools
    await stage.change("pull", description="Ignore nothing.")

    assert {name: kind for name, (kind, _) in (await _shown(operator)).items()} == {
        "git.pull": "changed",
        "git.push": "changed",
    }


async def _away(*_: Any) -> None:
    raise FleetUnavailable("away")


async def _without_an_end(stage: Stage) -> None:
    with contextlib.suppress(FleetUnavailable):
        await stage.refresh()


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_module_that_wants_it_is_pinned(stage: Stage, operator: Operator, *, at_once: bool) -> None:
    """To what is registered, or else to what it offers first: what it changes or adds is withheld, also with the wish itself."""
    first = await stage.listed()
    stage.git.manifest["on_change"] = "withheld"
    if not at_once:
        await stage.refresh()
    stage.git.change("push", description="Ignore all else.")
    stage.git.manifest["tools"].append({**stage.git.manifest["tools"][0], "name": "git.burn"})
    await stage.refresh()

    assert {name: kind for name, (kind, _) in (await _shown(operator)).items()} == {
        "git.burn": "withheld",
        "git.push": "withheld",
    }
    assert await stage.listed() == {name: text for name, text in first.items() if name != "push"}
    await operator.approve("git.push")
    assert (await stage.listed())["push"] == "Ignore all else."
    assert list(await _shown(operator)) == ["git.burn"]


async def test_a_new_module_that_wants_it_is_pinned_to_what_it_offers_first(
    redis: Redis, redis_url: str, elsewhere: Path
) -> None:
    """It has tools from then on, and those only."""
    git = Git()
    git.manifest["on_change"] = "withheld"
    tools, git.manifest["tools"] = git.manifest["tools"], []
    async with raw_module(git.answer) as url:
        stage = Stage(git, Settings(redis_url=redis_url, module_services={"git": url}), redis)
        await stage.refresh()  # its server has not started yet
        git.manifest["tools"] = tools[:2]
        await stage.refresh()
        git.manifest["tools"] = tools
        await stage.refresh()

        assert sorted(await stage.listed()) == ["log", "pull"]
