"""A random walk: whatever is done to a registry, it is as the one in memory."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from toolfleet.stores import InMemoryToolRegistry, ToolRegistration, ToolRegistry, ToolRegistrySnapshot, ToolSpec
from toolfleet_registry.specs import digest_of

# Few of each, so that they meet.
NAMES = st.sampled_from(["a", "b", 'm."x', "ä\n", "z\x00"])
MODULES = st.sampled_from(["m", 'm","x', ""])
VERSIONS = st.sampled_from([None, "", "null", "1.0.0", "2.0.0", '\t"'])
DIGESTS = st.dictionaries(NAMES, st.sampled_from(["d1", "d2"]), max_size=3)
SPECS = st.builds(
    ToolSpec,
    tool_name=NAMES,
    version=VERSIONS,
    description=st.none() | st.just("x"),
    input_schema=st.sampled_from([{}, {"a": 1}, {"a": [1.0, {}]}]),
    output_schema=st.just({}),
)
SNAPSHOTS = st.builds(
    ToolRegistrySnapshot,
    tools=st.lists(
        st.builds(
            ToolRegistration,
            spec=SPECS,
            enabled=st.booleans(),
            created_at=st.sampled_from([None, "x", "2025-12-27T14:00:00Z"]),
            rolled_back_from=VERSIONS,
        ),
        max_size=4,
    ),
    pins=st.dictionaries(MODULES, DIGESTS, max_size=3),
)


class Walk(RuleBasedStateMachine):
    registry: ToolRegistry

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
        registry.restore(ToolRegistrySnapshot())
        self.model = InMemoryToolRegistry()
        self.after = events[-1].id if (events := registry.events(limit=99_999)) else ""
        self.revisions = registry.revision(), self.model.revision()

    def both(self, do: Callable[[ToolRegistry], Any]) -> None:
        assert outcome(do, self.registry) == outcome(do, self.model)

    @rule(spec=SPECS, keep=st.booleans())
    def register(self, spec: ToolSpec, *, keep: bool) -> None:
        self.both(lambda registry: registry.register(spec, keep_enabled=keep))

    @rule(specs=st.lists(SPECS, max_size=5), keep=st.booleans())
    def register_many(self, specs: list[ToolSpec], *, keep: bool) -> None:
        self.both(lambda registry: registry.register_many(specs, keep_enabled=keep))

    @rule(spec=SPECS, other=SPECS, knows=st.booleans())
    def replace(self, spec: ToolSpec, other: ToolSpec, *, knows: bool) -> None:
        present = self.model.get(spec.tool_name)
        seen = present.spec if present and knows else other
        expected = None if knows and not present else digest_of(seen)
        self.both(lambda registry: registry.replace(spec, expected=expected))

    @rule(name=NAMES, enabled=st.booleans())
    def set_enabled(self, name: str, *, enabled: bool) -> None:
        self.both(lambda registry: registry.set_enabled(name, enabled))

    @rule(name=NAMES, version=VERSIONS)
    def rollback(self, name: str, version: str | None) -> None:
        self.both(lambda registry: registry.rollback(name, version))

    @rule(name=NAMES, version=VERSIONS)
    def look_back(self, name: str, version: str | None) -> None:
        self.both(lambda registry: registry.versions(name))
        self.both(lambda registry: registry.get(name, version))

    @rule(name=NAMES, unless_disabled=st.booleans())
    def remove(self, name: str, *, unless_disabled: bool) -> None:
        self.both(lambda registry: registry.remove(name, unless_disabled=unless_disabled))

    @rule(module=MODULES, digests=DIGESTS)
    def pin(self, module: str, digests: dict[str, str]) -> None:
        self.both(lambda registry: registry.pin(module, digests))

    @rule(module=MODULES, name=NAMES, digest=st.sampled_from(["d1", "d3"]))
    def approve(self, module: str, name: str, digest: str) -> None:
        self.both(lambda registry: registry.approve(module, name, digest))

    @rule(module=MODULES)
    def unpin(self, module: str) -> None:
        self.both(lambda registry: registry.unpin(module))

    @rule(snapshot=SNAPSHOTS)
    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        self.both(lambda registry: registry.restore(snapshot))

    @invariant()
    def they_are_alike(self) -> None:
        self.both(lambda registry: registry.snapshot())
        self.both(lambda registry: registry.list_all())
        told = [told_by(registry, after) for registry, after in ((self.registry, self.after), (self.model, ""))]
        assert told[0] == told[1]
        before, self.revisions = self.revisions, (self.registry.revision(), self.model.revision())
        assert (before[0] == self.revisions[0]) == (before[1] == self.revisions[1])


def outcome(do: Callable[[ToolRegistry], Any], registry: ToolRegistry) -> Any:
    """Without times, which nobody can foresee."""
    try:
        done = do(registry)
    except (ValueError, KeyError) as exc:
        return type(exc), str(exc)
    if isinstance(done, ToolRegistrySnapshot):
        return [timeless(each) for each in done.tools], done.pins
    return [timeless(each) for each in done] if isinstance(done, list) else timeless(done)


def timeless(thing: Any) -> Any:
    if not isinstance(thing, ToolRegistration):
        return str(thing)
    is_given = thing.created_at in {None, "x", "2025-12-27T14:00:00Z"}
    return thing if is_given else thing.model_copy(update={"created_at": "now"})


def told_by(registry: ToolRegistry, after: str) -> list[tuple[str, str, str | None, str | None]]:
    events = registry.events(after, limit=99_999)
    return [(event.kind, event.tool_name, event.version, event.digest) for event in events]


@pytest.mark.parametrize(
    ("kind", "walks"),
    [("redis", 40), ("sqlite", 25), ("postgresql", 2)],  # each step of PostgreSQL takes a dozen connections
    indirect=["kind"],
)
def test_every_registry_does_as_the_one_in_memory(registry: ToolRegistry, walks: int) -> None:
    """Results, errors, events and changes of the revision are the same."""

    class Here(Walk):
        pass

    Here.registry = registry
    few = settings(
        max_examples=walks,
        stateful_step_count=20,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # to make a failing walk shorter takes minutes
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(Here, settings=few)
