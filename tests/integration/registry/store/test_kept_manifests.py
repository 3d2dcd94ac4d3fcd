"""What every registry keeps beside its tools: the last good manifests, for when they have expired everywhere else."""

from support.modules.raw_modules import manifest_of
from toolfleet.stores import ToolRegistration, ToolRegistry, ToolSpec
from toolfleet_registry.catalog.registration import in_effect
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ToolOverride, kept_text, read_kept
from toolfleet_registry.specs import digest_of, spec_of

GIT = ModuleManifest.model_validate(manifest_of("git", "log", "push"))


def spec(name: str) -> ToolSpec:
    return ToolSpec(tool_name=name, input_schema={}, output_schema={})


def test_the_last_text_of_each_module_is_kept(registry: ToolRegistry) -> None:
    """Over the end of whoever kept it, and whatever characters are in it."""
    registry.keep_manifests({"git": "old", "mail": "\n1\nö\u2028"})
    registry.keep_manifests({"git": "new"})
    registry.keep_manifests({"git": "new"})
    registry.keep_manifests({})

    assert registry.kept_manifests(["git", "mail", "gone"]) == {"git": "new", "mail": "\n1\nö\u2028"}
    assert registry.kept_manifests([]) == {}


def test_many_and_large_ones_are_kept(registry: ToolRegistry) -> None:
    """More than one command or statement takes."""
    many = {f"module-{number}": f"{number}" + "x" * 500 for number in range(1200)}
    registry.keep_manifests(many)

    assert registry.kept_manifests([*many]) == many


def test_to_keep_one_is_no_change_of_the_registry(registry: ToolRegistry) -> None:
    """No event, no other revision; and to restore a snapshot loses none."""
    registry.register(spec("git.log"))
    before, revision, snapshot = registry.events(), registry.revision(), registry.snapshot()
    registry.keep_manifests({"git": "text"})

    assert (registry.events(), registry.revision(), registry.snapshot()) == (before, revision, snapshot)
    registry.restore(snapshot)
    assert registry.kept_manifests(["git"]) == {"git": "text"}


def test_the_entries_of_modules_are_kept_as_a_whole(registry: ToolRegistry) -> None:
    """What is not among the latest is there no more; and it is no change of the registry."""
    revision = registry.revision()
    registry.keep_modules({"git": "old", "mail": "\n1\nö\u2028"})
    registry.keep_modules({"git": "new", "web": "{}"})

    assert registry.kept_modules() == {"git": "new", "web": "{}"}
    assert registry.revision() == revision
    registry.keep_modules({})
    assert registry.kept_modules() == {}


def test_several_tools_are_found_at_once(registry: ToolRegistry) -> None:
    """Enabled or not; those that are not there are left out."""
    for name in ("git.log", "git.push"):
        registry.register(spec(name))
    registry.set_enabled("git.push", enabled=False)
    found = registry.get_many(["git.push", "git.log", "git.gone"])

    assert {name: each.enabled for name, each in found.items()} == {"git.log": True, "git.push": False}
    assert registry.get_many([]) == {}


def test_a_kept_manifest_is_read_as_it_was_kept() -> None:
    """With its verdicts; one that breaks a rule is not there."""
    kept = read_kept("git", kept_text(CachedManifest(GIT, 1.0, {"git.push": ToolOverride(fault="wrong")})))

    assert kept is not None
    assert (kept.manifest, kept.is_kept, kept.discovered_at) == (GIT, True, None)
    assert kept.verdicts == {"git.push": ToolOverride(fault="wrong")}
    assert read_kept("mail", kept_text(CachedManifest(GIT, 1.0))) is None


def test_what_was_found_wrong_stays_wrong_and_what_is_not_registered_is_closed() -> None:
    """Of the latter nobody knows whether it was disabled."""
    kept = CachedManifest(GIT, None, {"git.push": ToolOverride(fault="wrong")}, is_kept=True)
    push = ToolRegistration(spec=spec_of(GIT.tools[1]), enabled=False)
    verdicts = in_effect(kept, {"git.push": push}, {}).verdicts

    assert verdicts["git.push"] == ToolOverride(fault="wrong", is_disabled=True)
    assert "was not there" in str(verdicts["git.log"].fault)


def test_what_nobody_has_approved_stays_withheld() -> None:
    """The pins say so, whatever was approved when it was kept."""
    registered = {tool.name: ToolRegistration(spec=spec_of(tool)) for tool in GIT.tools}
    approved = {"git.log": digest_of(spec_of(GIT.tools[0]))}
    verdicts = in_effect(CachedManifest(GIT, None, is_kept=True), registered, {"git": approved}).verdicts

    assert [name for name, verdict in verdicts.items() if verdict.is_withheld] == ["git.push"]
