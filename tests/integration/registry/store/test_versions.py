"""The specifications that a registry keeps of a tool, and how an earlier one comes in force again."""

from collections.abc import Callable

import pytest

from support.there import there
from toolfleet.stores import ToolRegistration, ToolRegistry, ToolRegistrySnapshot, ToolSpec
from toolfleet_registry.specs import digest_of
from toolfleet_registry.store.registry import VERSIONS_KEPT

Registries = Callable[[], ToolRegistry]


def owl(version: str | None, about: str | None = None, name: str = "owl") -> ToolSpec:
    return ToolSpec(
        tool_name=name, version=version, description=about or version, input_schema={"a": 1}, output_schema={}
    )


def kept(registry: ToolRegistry, name: str = "owl") -> list[str | None]:
    return [each.spec.version for each in registry.versions(name)]


def test_earlier_versions_are_kept(registry: ToolRegistry, registries: Registries) -> None:
    """Sorted as Semantic Versioning does, whatever their order was; whoever opens the registry has them."""
    for version in ("1.9.0", "1.10.0", "latest", "1.10.0-rc.1", None, "1.2.0"):
        registry.register(owl(version))

    assert kept(registries()) == [None, "1.2.0", "1.9.0", "1.10.0-rc.1", "1.10.0", "latest"]
    assert kept(registry, "nobody") == []
    for version in ("1.9.0", "1.2.0"):
        found = there(registry.get("owl", version))
        assert (found.spec, found.enabled) == (owl(version), True)
    assert registry.get("owl", "7.0.0") is None
    assert registry.get("nobody", "1.9.0") is None
    assert registry.get("owl") == registry.get("owl", "1.2.0")


def test_a_tool_that_never_changed_has_one_version(registry: ToolRegistry) -> None:
    """The one in force; registered again it is still one."""
    registry.register_many([owl("1.0.0"), owl("1.0.0")])

    assert registry.versions("owl") == [registry.get("owl")]


def test_the_last_20_are_kept(registry: ToolRegistry) -> None:
    """With the one in force; those that were in force longest ago go first, also where all come at once."""
    one_by_one, at_once = [owl(f"1.{number}.0") for number in range(25)], [f"2.{number}.0" for number in range(25)]
    for spec in one_by_one:
        registry.register(spec)
    assert kept(registry) == [spec.version for spec in one_by_one[-VERSIONS_KEPT:]]

    registry.rollback("owl", "1.5.0")
    registry.register_many([owl(version) for version in at_once[:2]])
    assert kept(registry) == ["1.5.0", *(f"1.{number}.0" for number in range(8, 25)), *at_once[:2]]

    registry.register_many([owl(version) for version in at_once[2:]])
    assert kept(registry) == at_once[-VERSIONS_KEPT:]


def test_a_version_is_kept_once(registry: ToolRegistry) -> None:
    """As it was last: registered anew with other content, or replaced, the earlier content is gone."""
    registry.register(owl("1.0.0", "a"))
    registry.register(owl("2.0.0", "b"))
    registry.register(owl("1.0.0", "c"))
    registry.replace(owl("1.0.0", "d"), expected=digest_of(owl("1.0.0", "c")))

    assert [each.spec.description for each in registry.versions("owl")] == ["d", "b"]


def test_an_earlier_version_comes_in_force_again(registry: ToolRegistry, registries: Registries) -> None:
    """With everything that it said, and as an event; it says from which version it was rolled back."""
    registry.register(owl("1.0.0"))
    registry.register(owl("2.0.0"))
    registry.set_enabled("owl", enabled=False)
    revision = registry.revision()
    back = registry.rollback("owl", "1.0.0")

    assert (back.spec, back.enabled, back.rolled_back_from) == (owl("1.0.0"), False, "2.0.0")
    assert registries().get("owl") == back
    assert registry.list_all(include_disabled=True) == registry.snapshot().tools == [back]
    assert registry.revision() != revision
    (event,) = registry.events()[3:]
    assert (event.kind, event.version, event.digest) == ("rolled_back", "1.0.0", digest_of(owl("1.0.0")))
    assert kept(registry) == ["1.0.0", "2.0.0"]
    assert [each.rolled_back_from for each in registry.versions("owl")] == ["2.0.0", None]


def test_what_is_in_force_already_stays(registry: ToolRegistry) -> None:
    """A second rollback to it changes nothing."""
    registry.register(owl("1.0.0"))
    registry.register(owl("2.0.0"))
    back, revision = registry.rollback("owl", "1.0.0"), registry.revision()

    assert registry.rollback("owl", "1.0.0") == back
    assert registry.revision() == revision


def test_rolled_back_twice_the_first_version_counts(registry: ToolRegistry) -> None:
    """Until it is in force again: then nothing is rolled back any more."""
    for version in ("1.0.0", "2.0.0", "3.0.0"):
        registry.register(owl(version))
    since = [registry.rollback("owl", version).rolled_back_from for version in ("2.0.0", "1.0.0", "2.0.0", "3.0.0")]

    assert since == ["3.0.0", "3.0.0", "3.0.0", None]


@pytest.mark.parametrize("name", ["owl", "nobody"])
def test_what_is_not_kept_cannot_come_back(registry: ToolRegistry, name: str) -> None:
    """One sentence says so, and nothing is changed."""
    registry.register(owl("1.0.0"))
    before = registry.snapshot(), registry.events()
    with pytest.raises(
        (ValueError, KeyError), match=f"'{name}' (has no version '9.0.0' that is kept|is not registered)"
    ):
        registry.rollback(name, "9.0.0")

    assert (registry.snapshot(), registry.events()) == before


def test_disabling_leaves_a_rollback_alone(registry: ToolRegistry) -> None:
    """And what was kept."""
    registry.register(owl("1.0.0"))
    registry.register(owl("2.0.0"))
    registry.rollback("owl", "1.0.0")

    assert registry.set_enabled("owl", enabled=False).rolled_back_from == "2.0.0"
    assert registry.set_enabled("owl", enabled=True).rolled_back_from == "2.0.0"
    assert kept(registry) == ["1.0.0", "2.0.0"]


def test_whoever_registers_ends_a_rollback(registry: ToolRegistry) -> None:
    """The rules of registering are what they were; whoever replaces ends it, too."""
    ends: list[Callable[[], ToolRegistration]] = [
        lambda: registry.register(owl("2.0.0")),
        lambda: registry.register(owl("3.0.0"), keep_enabled=True),
        lambda: registry.replace(owl("2.0.0"), expected=digest_of(owl("1.0.0"))),
    ]
    for end in ends:
        for version in ("1.0.0", "2.0.0"):
            registry.register(owl(version))
        assert registry.rollback("owl", "1.0.0").rolled_back_from == "2.0.0"
        assert end().rolled_back_from is None
        assert {"1.0.0", "2.0.0"} <= {*kept(registry)}


def test_what_was_rolled_back_from_does_not_come_back_unasked(registry: ToolRegistry) -> None:
    """Whoever leaves tools as they are registers it in vain, alone and among others: somebody else was faster."""
    for version in ("1.0.0", "2.0.0"):
        registry.register_many([owl(version), owl(version, name="cat")])
    back = registry.rollback("owl", "1.0.0")

    assert registry.register(owl("2.0.0"), keep_enabled=True) == back
    assert registry.register_many([owl("2.0.0"), owl("2.0.0", name="cat")], keep_enabled=True)[0] == back
    assert registry.register(owl("1.0.0"), keep_enabled=True) == back
    assert registry.register_many([owl("1.0.0"), owl("2.0.0", name="cat")], keep_enabled=True)[0] == back
    assert registry.get("owl") == back


def test_what_is_kept_goes_with_the_tool(registry: ToolRegistry) -> None:
    """A tool that comes again has no past; neither has one that a snapshot brings."""
    for version in ("1.0.0", "2.0.0"):
        registry.register(owl(version))
    snapshot = registry.snapshot()
    registry.remove("owl")
    assert kept(registry) == []
    registry.register(owl("3.0.0"))
    assert kept(registry) == ["3.0.0"]

    registry.restore(ToolRegistrySnapshot())
    registry.restore(snapshot)
    assert kept(registry) == ["2.0.0"]


def test_a_snapshot_has_the_rollbacks(registry: ToolRegistry) -> None:
    """Restored, they hold; and what a snapshot takes the place of is kept."""
    for version in ("1.0.0", "2.0.0"):
        registry.register(owl(version))
    back = registry.rollback("owl", "1.0.0")
    snapshot = ToolRegistrySnapshot.model_validate_json(registry.snapshot().model_dump_json())
    registry.register(owl("3.0.0"))
    registry.restore(snapshot)

    assert registry.get("owl") == back
    assert kept(registry) == ["1.0.0", "2.0.0", "3.0.0"]


def test_any_text_is_a_version_to_go_back_to(registry: ToolRegistry) -> None:
    """Tabs, quotes and what else marks something in a store mean nothing there."""
    nasty = ['"', "\t", '",\t"', "a\nb", '{"rolled_back_from":"x",\t', "\x00", "null", "", "\\", "🦉%"]
    for version in (*nasty, "last"):
        registry.register(owl(version))
    for version in nasty:
        back = registry.rollback("owl", version)
        assert (back.spec, back.rolled_back_from) == (owl(version), "last")
    assert {*kept(registry)} == {*nasty, "last"}
