"""A module that does what it likes, an operator, and refreshes, in any order: what may be used is what the rules say."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.schemas.examples import examples
from toolfleet_registry.catalog.registration import Known, offers_of, take_in
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.manifests.manifest_cache import SeenTool, ToolOverride, seen_tools
from toolfleet_registry.specs import digest_of, spec_of
from toolfleet_registry.store.memory import InMemoryToolRegistry

METHODS = st.sampled_from(["a", "b", "c"])
VERSIONS = st.sampled_from([None, "1", "2"])
TEXTS = st.sampled_from(["x", "y", "z"])


def digest(tool: ToolDefinition) -> str:
    return digest_of(spec_of(tool))


class Rules(RuleBasedStateMachine):
    """The model is what each rule says of one tool, in the plainest words; `taken` is what was in effect last."""

    @initialize()
    def begin(self) -> None:
        self.registry = InMemoryToolRegistry()
        self.offered: dict[str, ToolDefinition] = {}
        self.taken: dict[str, ToolDefinition] = {}
        self.disabled: set[str] = set()
        self.pins: dict[str, str] | None = None
        self.withheld: set[str] = set()
        self.drifted: dict[str, str] = {}
        self.names: frozenset[str] = frozenset()
        self.verdicts: dict[str, ToolOverride] = {}
        self.seen: dict[str, SeenTool] = {}

    @rule(method=METHODS, version=VERSIONS, text=TEXTS)
    def offer(self, method: str, version: str | None, text: str) -> None:
        self.offered[f"git.{method}"] = ToolDefinition(name=f"git.{method}", version=version, description=text)

    @rule(method=METHODS)
    def withdraw(self, method: str) -> None:
        self.offered.pop(f"git.{method}", None)

    @rule()
    def refresh(self) -> None:
        manifest = ModuleManifest(module_name="git", tools=list(self.offered.values()))
        intake = self._judge(manifest)
        answers = self.registry.register_many(intake.register, keep_enabled=True)
        assert not any(isinstance(answer, ValueError) for answer in answers)
        for name in intake.forget:
            self.registry.remove(name)
        again = self._judge(manifest)
        assert (again.register, again.forget) == ([], [])
        assert again.verdicts == intake.verdicts  # registering decides nothing
        self.verdicts, self.names = again.verdicts, frozenset(self.offered)
        self.seen = {tool.access.tool_name: tool for tool in seen_tools(manifest, again.verdicts)}
        self._take()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def disable(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.taken)))
        self.registry.set_enabled(name, False)
        self.disabled.add(name)
        self.refresh()

    @precondition(lambda self: self.disabled)
    @rule(data=st.data())
    def enable(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.disabled)))
        self.registry.set_enabled(name, True)
        self.disabled.discard(name)
        self.refresh()

    @rule()
    def pin(self) -> None:
        """What was offered may have changed since: what counts is what is in effect."""
        self.refresh()
        if self.pins is None:
            self.pins = {name: digest(tool.definition) for name, tool in self.seen.items()}
            self.registry.pin("git", self.pins)
            self.refresh()

    @rule()
    def unpin(self) -> None:
        self.pins = None
        self.registry.unpin("git")
        self.refresh()

    @precondition(lambda self: any(verdict.digest for verdict in self.verdicts.values()))
    @rule(data=st.data())
    def approve(self, data: Any) -> None:
        self.refresh()
        pending = sorted(name for name, verdict in self.verdicts.items() if verdict.digest)
        if not pending:
            return
        name = data.draw(st.sampled_from(pending))
        present = self.registry.get(name)
        spec = spec_of(self.offered[name])
        self.registry.replace(spec, expected=None if present is None else digest_of(present.spec))
        self.taken[name] = self.offered[name]
        if self.pins is not None:
            self.pins[name] = digest_of(spec)
            self.registry.approve("git", name, digest_of(spec))
        self.refresh()

    @invariant()
    def what_may_be_used_is_what_the_rules_say(self) -> None:
        open_tools = {name: tool.definition for name, tool in self.seen.items() if tool.access.closed is None}
        assert self.disabled.isdisjoint(open_tools)
        assert open_tools == {
            name: self.taken[name] for name in self.names if name not in self.disabled | self.withheld
        }

    def _take(self) -> None:
        """Unless it is withheld, what is offered is in effect; but for other content under the version that is."""
        self.withheld = {name for name in self.offered if not self._is_approved(name)}
        drifted = {name: digest(tool) for name, tool in self.offered.items() if self._has_drifted(name)}
        self.drifted = {name: content for name, content in drifted.items() if name not in self.withheld}
        self.taken |= {
            name: tool
            for name, tool in self.offered.items()
            if name not in self.withheld and not self._has_drifted(name)
        }

    def _has_drifted(self, name: str) -> bool:
        known, tool = self.taken.get(name), self.offered[name]
        return known is not None and known.version is not None and known.version == tool.version and known != tool

    def _is_approved(self, name: str) -> bool:
        offered = digest(self.offered[name])
        if self.pins is None or self.pins.get(name) == offered:
            return True
        had_drifted = self._has_drifted(name) and self.drifted.get(name) == offered
        return had_drifted and self.pins.get(name) == digest(self.taken[name])

    def _judge(self, manifest: ModuleManifest) -> Any:
        registrations = {one.spec.tool_name: one for one in self.registry.list_all(include_disabled=True)}
        known = Known(registrations, self.registry.pins().get("git"), self.names, self.verdicts)
        return take_in(offers_of(manifest), known, lambda _: None)


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
