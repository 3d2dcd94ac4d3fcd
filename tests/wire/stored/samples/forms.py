"""Defines what a form of stored text is: how today's code writes it and reads it, and what it does with a newer version's."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from toolfleet_registry.contracts import Message
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.signing import TextSeal
from toolfleet_tasks.messages import json_text
from wire.keep import MODES

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stored"
REFUSALS = (ValueError, MessageRefused)
"""What a text that counts for nothing is refused with; pydantic's errors are `ValueError`, and so is `NewerMessage`."""

T = TypeVar("T")


@dataclass(frozen=True)
class StoredForm:
    """One kind of text that leaves a process. `samples`: values of it by name; the one called `plain` has nothing new.

    `content` and `parse` write and read it without its signature, which `seal` makes with the fleet's key; `None`: it is never
    signed. `unknown`: what becomes of a text with a field that today's code does not know. `is_versioned`: it says which
    version its reader needs, once it has what came later.
    """

    name: str
    samples: Mapping[str, Any]
    content: Callable[[Any], str]
    parse: Callable[[str], Any]
    unknown: Literal["ignored", "refused"]
    seal: Callable[[str | None], TextSeal] | None = None
    is_versioned: bool = False

    @property
    def modes(self) -> list[str]:
        """The modes of a fleet in which its text differs."""
        return ["unsigned"] if self.seal is None else list(MODES)

    @property
    def path(self) -> Path:
        """Where its fixtures are: texts by mode, by sample, the oldest first."""
        return FIXTURES / f"{self.name.replace(' ', '_')}.json"

    def kept(self) -> dict[str, dict[str, list[str]]]:
        """The fixtures; nothing, while there are none."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def write(self, value: Any, mode: str) -> str:
        """The text as it is stored in a fleet of that mode."""
        return self.signed(self.content(value), mode)

    def signed(self, content: str, mode: str) -> str:
        """Any content, as a fleet of that mode signs it."""
        return content if self.seal is None else self.seal(MODES[mode].get("signing_key")).sign(content)

    def read(self, text: str, mode: str) -> Any:
        """What a text is. Raises one of `REFUSALS` for what counts for nothing."""
        return self.parse(text if self.seal is None else self.seal(MODES[mode].get("signing_key")).read(text))

    def newer(self, value: Any, mode: str) -> str:
        """The same as a version to come would write it: with a field more."""
        return self.signed(json.dumps({**json.loads(self.content(value)), "colour": "red"}), mode)


def message_form(
    name: str, samples: Mapping[str, Message], *, seal: Callable[[str | None], TextSeal] | None = None
) -> StoredForm:
    """A message that says its version."""
    (kind,) = {type(value) for value in samples.values()}

    def parse(text: str) -> Message:
        return json_text.load(kind, text)

    return StoredForm(name, samples, json_text.dump, parse, "refused", seal, is_versioned=True)


def needed(found: T | str | None) -> T:
    """What was read; a reader says by `None`, or by a reason, that it counts for nothing."""
    if found is None or isinstance(found, str):
        raise ValueError(found or "it counts for nothing")
    return found


def sealing(purpose: str) -> Callable[[str | None], TextSeal]:
    """What makes the seal of one purpose from the fleet's key."""
    return lambda key: TextSeal(key, purpose=purpose)
