"""Defines the files that tools take and return: an image, a sound, or any other. Each goes to a model in its provider's own form."""

import mimetypes
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from toolfleet_registry.contracts.result_files import FileKind, ResultFile
from toolfleet_registry.functions.encoded_bytes import Media, decoded, schema_of
from toolfleet_registry.functions.media_types import fits, is_known_by_bytes, plain_type, recognised

_LONGEST_NAME = 255


class File:
    """Bytes with a media type, and perhaps a name. A tool returns them, alone or anywhere in its result.

    As the annotation of a parameter it takes base64 or a data URL. The media type may be left out where the bytes or the
    name show it. Raises `TypeError` for what has no bytes, `ValueError` for none of them, and for a media type that they contradict.
    """

    kind: ClassVar[FileKind] = "file"
    takes: ClassVar[str] = "*/*"
    """The media types that it may have."""
    __slots__ = ("data", "media_type", "name")

    def __init__(
        self, data: bytes | bytearray | memoryview, media_type: str | None = None, *, name: str | None = None
    ) -> None:
        self.data = bytes(memoryview(data))  # of a number, `bytes` would make so many zeros
        """What is in it."""
        if not self.data:
            raise ValueError(f"{type(self).__name__} has no bytes.")
        if name is not None and not (0 < len(name) <= _LONGEST_NAME and name.isprintable()):
            raise ValueError(f"A file's name has 1 to {_LONGEST_NAME} characters that can be printed.")
        self.name = name
        """What it is called, if it has a name."""
        self.media_type = self._type(media_type)
        """What its bytes are."""

    @classmethod
    def open(cls, path: str | Path, media_type: str | None = None) -> Self:
        """Read a file of this machine, under its own name. Raises `OSError`."""
        return cls(Path(path).read_bytes(), media_type, name=Path(path).name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.media_type!r}, {len(self.data)} bytes)"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[bytes, str, str | None]:
        return self.data, self.media_type, self.name

    def _type(self, said: str | None) -> str:
        seen = recognised(self.data)
        declared = plain_type(said) if said is not None else None
        if seen is not None and declared is not None and seen != declared:
            raise ValueError(f"The bytes are {seen}, and not {declared}.")
        if seen is None and declared is not None and is_known_by_bytes(declared):
            raise ValueError(f"The bytes are not {declared}.")
        guessed = mimetypes.guess_type(self.name)[0] if self.name else None
        found = declared or seen or guessed or ("application/octet-stream" if self.takes == "*/*" else None)
        if found is None:
            raise ValueError(f"{type(self).__name__} needs a media_type: the bytes do not show it.")
        if "*" in found or not fits(self.takes, found):
            raise ValueError(f"{type(self).__name__} takes {self.takes}, not {found}.")
        return found

    @classmethod
    def _read(cls, value: Any) -> Self:
        if isinstance(value, cls):
            return value
        data, media_type = decoded(value, Media(cls.takes))
        return cls(data, media_type)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Have pydantic read one from an argument, and label it in a result."""
        return core_schema.no_info_plain_validator_function(
            cls._read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                _written, info_arg=True, return_schema=core_schema.str_schema(), when_used="json"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """An argument is base64; in a result its label stands."""
        return {"type": "string"} if handler.mode == "serialization" else schema_of(cls.takes)


class Image(File):
    """An image: PNG, JPEG, GIF and WebP are those that models look at."""

    kind = "image"
    takes = "image/*"
    __slots__ = ()


class Audio(File):
    """A sound."""

    kind = "audio"
    takes = "audio/*"
    __slots__ = ()


class Gathered:
    """The files of one result, in the order in which they stand in it."""

    def __init__(self) -> None:
        self.files: list[ResultFile] = []

    def add(self, value: object) -> str:
        """Add a file and return its label. Raises `TypeError` for any other value."""
        if not isinstance(value, File):
            raise TypeError(f"a {type(value).__name__} is no JSON")
        self.files.append(ResultFile.of(value.kind, value.data, value.media_type, value.name))
        return self.files[-1].label(len(self.files))


def _written(value: File, info: Any) -> str:
    if isinstance(info.context, Gathered):
        return info.context.add(value)
    return ResultFile.of(value.kind, value.data, value.media_type, value.name).data
