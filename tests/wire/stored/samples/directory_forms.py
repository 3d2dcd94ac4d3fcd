"""Defines samples of what stands in the directory of modules, and of what hosts say there."""

from toolfleet_registry.contracts.tool_definition import ToolLoadError
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.directory.hosts import Announcement, announce_key, hosts_seal
from toolfleet_registry.directory.requests import ReloadAnswer
from toolfleet_registry.signing import TextSeal
from wire.stored.samples.forms import StoredForm, sealing
from wire.stored.samples.job_forms import AT

ENTRY = ModuleEntry(module="owls", url="http://owls.test:8000", added_at=AT)
FILLED_ENTRY = ModuleEntry(
    module="owls",
    url="http://owls.test:8000/v1",
    origin="settings",
    slow=True,
    timeout_seconds=90.0,
    scales_from_zero=True,
    added_at=AT,
    removed_at=AT + 60,
    drain_seconds=30.0,
)
ANNOUNCED = Announcement(
    module="owls", id="host-1", url="http://10.0.0.7:8000", digest="8" * 64, at=AT + 0.25, counter=7
)
FILLED_ANNOUNCED = ANNOUNCED.model_copy(update={"has_shared_store": True, "slow": True, "timeout_seconds": 90.0})
_ERROR = ToolLoadError(
    file="owls.py", error_type="SyntaxError", message="invalid syntax", timestamp=AT, line=3, in_effect="previous"
)


def announced_seal(key: str | None) -> TextSeal:
    """What a host signs with that has the key of this module alone."""
    return hosts_seal("" if key is None else announce_key(key, "owls"))


DIRECTORY_FORMS: tuple[StoredForm, ...] = (
    StoredForm(
        "module entry",
        {"plain": ENTRY, "filled": FILLED_ENTRY, "public": ENTRY.model_copy(update={"public_only": True})},
        ModuleEntry.text,
        ModuleEntry.model_validate_json,
        "ignored",
        sealing("module"),
    ),
    StoredForm(
        "announcement",
        {"plain": ANNOUNCED, "filled": FILLED_ANNOUNCED},
        lambda said: said.model_dump_json(exclude_defaults=True),
        Announcement.model_validate_json,
        "ignored",
        announced_seal,
    ),
    StoredForm(
        "reload answer",
        {"plain": ReloadAnswer(module="owls", is_done=True, tools=3, errors=[_ERROR])},
        ReloadAnswer.model_dump_json,
        ReloadAnswer.model_validate_json,
        "refused",
    ),
)
