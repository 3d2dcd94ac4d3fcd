"""Defines what every message that crosses a process is: frozen, and strict about unknown fields if it is of our own making."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import VERSION, AfterValidator, BaseModel, ConfigDict, Field

DEFERS_BUILD: Final = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)
"""Whether a model's validator is built with its first use: a process uses a few of a hundred. Older versions of pydantic may
give a thread the validator of the model's base while another one builds its own."""


@dataclass(frozen=True, slots=True)
class Since:
    """Marks a field that came after the first version of its message: a reader of an older version cannot read the message.

    `name: Annotated[str | None, Since(2)] = None`. A field without its default value makes the message one of that
    version.
    """

    version: int


def _whole(seconds: float) -> float:
    """Return a whole number as an integer: so it is shown and sent."""
    return int(seconds) if seconds.is_integer() else seconds


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_whole)]


class Message(BaseModel):
    """A message of our own: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    # Each result is copied once: half the time of pydantic's own way, and a sixth of its calls.
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the fields of `update`, which are not validated."""
        if deep or self.__pydantic_private__ is not None:
            return super().model_copy(update=update, deep=deep)
        copied, set_, fields = object.__new__(self.__class__), object.__setattr__, update or {}
        set_(copied, "__dict__", {**self.__dict__, **fields})
        set_(copied, "__pydantic_fields_set__", {*self.__pydantic_fields_set__, *fields})
        set_(copied, "__pydantic_extra__", None)
        set_(copied, "__pydantic_private__", None)
        return copied


class ModuleMessage(BaseModel):
    """A message from a module: frozen; a field that we do not know is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERS_BUILD)
