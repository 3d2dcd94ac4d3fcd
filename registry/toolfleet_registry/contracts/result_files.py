"""Describes a file that comes with a result, such as an image: it is kept separately, and the result's text has only its label.

A reader without support for files, such as an older agent or a model that takes text only, learns from the label what
there is and how large it is.
"""

from base64 import b64decode, b64encode
from typing import Literal, Self

from toolfleet_registry.contracts.message import Message

FileKind = Literal["image", "audio", "file"]
"""What a model is to do with a file: look at it, listen to it, or read it."""

MOST_FILES = 100
"""Files of one result: no provider takes more images in a request."""


class ResultFile(Message):
    """One file of a result."""

    kind: FileKind
    """Whether it is an image, a sound, or anything else."""
    media_type: str
    """What its bytes are, such as `image/png`."""
    data: str
    """Its bytes as base64."""
    name: str | None = None
    """What it is called, if it has a name."""

    @classmethod
    def of(cls, kind: FileKind, data: bytes, media_type: str, name: str | None) -> Self:
        """Encode a file."""
        return cls(kind=kind, media_type=media_type, data=b64encode(data).decode(), name=name)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.data) * 3 // 4 - self.data.count("=", -2)

    def read(self) -> bytes:
        """Decode its bytes."""
        return b64decode(self.data)

    def label(self, number: int) -> str:
        """Return the label that replaces the file in a text, as the `number`th file of its result."""
        named = f" {self.name!r}" if self.name else ""
        return f"{self.kind} {number}{named} ({self.media_type}, {self.size} bytes)"
