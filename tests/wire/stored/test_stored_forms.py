"""What is stored and announced, over versions: each form's text was kept as it is written, and is read; a newer one's does no harm."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from support.versions.releases import versions
from toolfleet_registry.contracts import PublishedCall, SealedCall, Since
from toolfleet_registry.directory.hosts import readers_seal
from toolfleet_registry.signing import SigningSettings
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal
from wire.fields_program import messages
from wire.keep import FIXTURES, MODES
from wire.stored.samples.all_forms import FORMS, apart, kept_apart, messages_in
from wire.stored.samples.forms import REFUSALS, StoredForm
from wire.test_fixtures import NAMED_ANEW

KEEP = "its stored form has changed: run `PYTHONPATH=tests python -m wire.stored.keep_stored`, and commit the fixtures"
EACH = [
    pytest.param(form, mode, sample, id=f"{form.name}-{mode}-{sample}")
    for form in FORMS
    for mode in form.modes
    for sample in form.samples
]
ELSEWHERE = {
    "AgentContext": "test_module_contract.py",
    "GivenInputs": "test_module_contract.py",
    "InputRequest": "test_module_contract.py",
    "_Kept": "made of an `InputRequest`: tests/integration/tasks/ledger",
    "PendingInput": "made of it where it is read",
    "Job": "made of a job's records",
    "ToolProgram": "made of a program's records",
    "KeyDraft": "an `ApiKey` has its fields",
    "LimitUse": "made of counters",
    "Remaining": "made of counters",
    "ModuleStatus": "made of manifests",
    "ToolOverride": "made of the registry",
    "ToolFinding": "an event of the registry: test_stored_records.py",
    "RegistryEvent": "test_stored_records.py",
    "ToolRegistration": "test_stored_records.py",
    "ToolRegistrySnapshot": "is in no store",
    "SealedCall": "a `PublishedCall` as workers read it: `kept_apart`",
    "TagResult": "is told a model at once",
}
"""The messages that are in no sample, and why."""
VERSIONED = [form for form in FORMS if form.is_versioned]
each_sample = pytest.mark.parametrize(("form", "mode", "sample"), EACH)
each_versioned = pytest.mark.parametrize("form", VERSIONED, ids=lambda form: form.name)


@each_sample
def test_what_is_written_was_kept(form: StoredForm, mode: str, sample: str) -> None:
    """Whoever changes how something is stored adds a fixture, behind those of older versions."""
    kept = form.kept().get(mode, {}).get(sample, [])

    assert kept[-1:] == [form.write(form.samples[sample], mode)], KEEP


@each_sample
def test_what_was_kept_is_read(form: StoredForm, mode: str, sample: str) -> None:
    """Today's code reads what every version has stored; what the last one has is what was meant."""
    read = [form.read(text, mode) for text in form.kept()[mode][sample]]

    assert read[-1] == form.samples[sample]


@pytest.mark.parametrize("mode", MODES)
def test_calls_with_their_arguments_apart_were_kept_and_are_read(mode: str) -> None:
    """In the form that workers of a version and later ones read: whoever changes it adds a fixture, and raises the version."""
    seal, kept = Seal(MODES[mode].get("signing_key")), kept_apart()[mode]
    (form,) = (form for form in FORMS if form.name == "call")
    read = {name: [seal.open(text, task_id="call-1") for text in texts] for name, texts in kept.items()}

    assert {name: texts[-1] for name, texts in kept.items()} == apart(mode), KEEP
    assert {name: _whole(calls[-1]) for name, calls in read.items()} == form.samples


def _whole(call: PublishedCall) -> PublishedCall:
    return call.whole() if isinstance(call, SealedCall) else call


def test_the_samples_have_every_field() -> None:
    """A field that is added stands in a sample, away from its default, and so in a fixture."""
    found, kinds = defaultdict[str, set[str]](set), dict[str, type[BaseModel]]()
    for form in FORMS:
        for message in (each for value in form.samples.values() for each in messages_in(value)):
            kinds[type(message).__name__] = type(message)
            found[type(message).__name__] |= set(_filled(message))

    lacking = {name: sorted(_stored_fields(kind) - found[name]) for name, kind in kinds.items()}
    assert {name: fields for name, fields in lacking.items() if fields} == {}
    assert len(kinds) > 30


def test_each_message_stands_in_a_sample() -> None:
    """Whoever adds a message to what is stored adds a sample of it, and so a fixture, or says here who holds it elsewhere."""
    found = {type(each).__name__ for form in FORMS for value in form.samples.values() for each in messages_in(value)}
    there = {kind.__name__ for kind in messages() if kind.__module__.startswith("toolfleet_")}  # tests have some, too

    assert sorted(there - found - set(ELSEWHERE)) == []
    assert [name for name in ELSEWHERE if name in found or name not in there] == []


@each_sample
def test_what_a_newer_version_adds_is_ignored_or_refused_as_the_form_says(
    form: StoredForm, mode: str, sample: str
) -> None:
    """Where a field could narrow what the rest allows, the whole counts for nothing; elsewhere it is read over."""
    value = form.samples[sample]
    text = form.newer(value, mode)

    if form.unknown == "ignored":
        assert form.read(text, mode) == value
    else:
        with pytest.raises(REFUSALS):
            form.read(text, mode)


@each_versioned
def test_a_text_that_says_a_newer_version_is_known_as_such(form: StoredForm) -> None:
    """It is left to processes that can read it, and not taken for garbage."""
    newer = {"v": json_text.VERSION + 1, **json.loads(form.content(form.samples["plain"]))}

    with pytest.raises(json_text.NewerMessage) as refused:
        form.parse(json.dumps(newer))
    assert refused.value.version == json_text.VERSION + 1


@pytest.mark.parametrize("form", [form for form in FORMS if form.seal is not None], ids=lambda form: form.name)
def test_where_the_fleet_signs_an_unsigned_text_counts_for_nothing(form: StoredForm) -> None:
    """Neither does a signed one where there is no key: a fleet that begins to sign, or stops, makes these texts anew."""
    value = form.samples["plain"]

    with pytest.raises(REFUSALS):
        form.read(form.write(value, "unsigned"), "signed")
    with pytest.raises(REFUSALS):
        form.read(form.write(value, "signed"), "unsigned")


@pytest.mark.parametrize("mode", MODES)
def test_what_a_host_announces_is_believed_by_the_fleet(mode: str) -> None:
    """The host has the key of its module, and the fleet its own: each announcement that was kept is read with that."""
    form = next(form for form in FORMS if form.name == "announcement")
    seal = readers_seal(SigningSettings(signing_key=MODES[mode].get("signing_key")), "owls")

    for texts in form.kept()[mode].values():
        assert [form.parse(seal.read(text)).module for text in texts] == ["owls"] * len(texts)


@each_versioned
def test_a_text_with_nothing_new_says_no_version(form: StoredForm) -> None:
    """So older processes read it; one with something new says the version of the newest field in it."""
    for sample, value in form.samples.items():
        text = json.loads(form.content(value))
        needed = max((mark for each in messages_in(value) for mark in _marks(each)), default=1)

        assert text.get("v", 1) == needed, sample
        assert sample != "plain" or needed == 1, "the plain sample has something new"


@pytest.mark.parametrize("version", versions(), ids=lambda version: f"wire {version.number}")
@each_versioned
def test_a_text_with_nothing_new_has_only_fields_of_that_version(form: StoredForm, version: Any) -> None:
    """As far as that version had such messages at all."""
    then: dict[str, list[str]] = json.loads((FIXTURES / f"{version.number}-fields.json").read_text())
    names = {later: earlier for earlier, later in NAMED_ANEW.items()}
    for message in messages_in(form.samples["plain"]):
        name = type(message).__name__
        known = then.get(names.get(name, name))
        if known is not None:
            assert set(_filled(message)) <= set(known), name


def _filled(message: BaseModel) -> Iterator[str]:
    """The fields that are not at their defaults, and so are written."""
    for name, field in type(message).model_fields.items():
        if field.is_required() or getattr(message, name) != field.get_default(call_default_factory=True):
            yield name


def _stored_fields(kind: type[BaseModel]) -> set[str]:
    return {name for name, field in kind.model_fields.items() if not field.exclude}


def _marks(message: BaseModel) -> Iterator[int]:
    fields = type(message).model_fields
    for name in _filled(message):
        yield from (mark.version for mark in fields[name].metadata if isinstance(mark, Since))
