"""Defines the files that tools take and return, recognises their types, and reads bytes that arguments carry."""

import mimetypes
import re
import types
import typing
from base64 import b64encode
from binascii import a2b_base64
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from toolfleet_registry.contracts.calls import FileKind, ResultFile

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}  # by what follows the size
_KNOWN = frozenset({name for _, name in _BEGINNINGS} | set(_RIFF.values())) - {"audio/mpeg"}
_MEDIA_TYPE = re.compile(r"([a-z0-9][a-z0-9!#$&^_.+-]{0,63}|\*)/([a-z0-9][a-z0-9!#$&^_.+-]{0,63}|\*)", re.ASCII)
_SAME = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/x-flac": "audio/flac",
}

_LONGEST_NAME = 255

_DATA_URL = re.compile(r"data:([^,;]{0,130})((?:;[^,;]{0,100}){0,5}),", re.ASCII)
_SPACE = str.maketrans("", "", " \t\r\n")
_SHOWN = 80  # characters of a media type in an input
_HOLDERS: frozenset[Any] = frozenset({list, dict, tuple, set, frozenset})


def recognised(data: bytes) -> str | None:
    """Return the media type that the first bytes show, or `None`."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    return next((name for beginning, name in _BEGINNINGS if data.startswith(beginning)), None)


def plain_type(text: str) -> str:
    """Return a media type in small letters, under its usual name, without parameters. Raises `ValueError` if it is none."""
    name = text.partition(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(name):
        raise ValueError(f"{text[:80]!r} is no media type, such as image/png.")
    return _SAME.get(name, name)


def fits(wanted: str, found: str) -> bool:
    """Return whether a media type is the wanted one; `image/*` takes all images, `*/*` anything."""
    if wanted.endswith("/*"):
        return wanted == "*/*" or found.startswith(wanted[:-1])
    return found == wanted


def is_known_by_bytes(name: str) -> bool:
    """Return whether bytes of this type are always recognised, so that unrecognised ones are not of it."""
    return name in _KNOWN


class File:
    """Bytes with a media type, and perhaps a name. A tool returns them, alone or anywhere in its result.

    As the annotation of a parameter, the argument is base64 or a data URL.

    Args:
        data: The bytes.
        media_type: Such as `image/png`. It can be left out if the bytes or the name show it.
        name: The file's name.

    Raises:
        TypeError: `data` has no bytes.
        ValueError: The bytes are empty, or contradict the media type.

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
        """Read a file of this machine, under its own name.

        Args:
            path: The file.
            media_type: As in the constructor.

        Returns:
            The file, with its name.

        Raises:
            OSError: It cannot be read.

        """
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
        """Return the schema: base64 for an argument; the label of the file for a result."""
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


@dataclass(frozen=True, slots=True)
class Media:
    """The media type of a `bytes` parameter: `Annotated[bytes, Media("image/png", most_bytes=100_000)]`.

    Args:
        media_type: Such as `image/png`, or `image/*` for any image.
        most_bytes: The largest size.

    Raises:
        ValueError: The media type is invalid.

    """

    media_type: str = "*/*"
    """What is taken, for example `image/png` or `image/*`."""
    most_bytes: int | None = None
    """How many bytes at most; `None`: as many as arguments may have."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "media_type", plain_type(self.media_type))
        if self.most_bytes is not None and self.most_bytes <= 0:
            raise ValueError(f"most_bytes must be positive, not {self.most_bytes}.")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Have pydantic decode what comes as text; bytes, as in a default, stay as they are."""
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, bytes) else decoded(value, self)[0],
            core_schema.bytes_schema(strict=True),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: b64encode(value).decode(), return_schema=core_schema.str_schema(), when_used="json"
            ),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the parameter's part of the arguments' schema."""
        return schema_of(self.media_type)


def schema_of(media_type: str) -> dict[str, Any]:
    """Return the JSON Schema of base64 of such bytes."""
    exact = {} if "*" in media_type else {"contentMediaType": media_type}
    return {"type": "string", "contentEncoding": "base64", **exact}


def decoded(text: Any, media: Media) -> tuple[bytes, str | None]:
    """Return the bytes and, if it can be told, their media type. Raises `PydanticCustomError` in one sentence, without the value."""
    if not isinstance(text, str):
        raise _fault("This is no string: send the file's content as base64")
    declared, text = _declared(text)
    try:
        data = a2b_base64(text.translate(_SPACE), strict_mode=True)
    except ValueError:
        raise _fault("This is no base64: letters, digits, + and /, and = at the end") from None
    if not data:
        raise _fault("This has no bytes: send the file's content as base64")
    if media.most_bytes is not None and len(data) > media.most_bytes:
        raise _fault(f"This has {len(data)} bytes; at most {media.most_bytes} are taken")
    found = recognised(data)
    if found is not None and declared is not None and found != declared:
        raise _fault(f"This is {found}, and not {declared} as its data URL says")
    if found is None and declared is not None and is_known_by_bytes(declared):
        raise _fault(f"This is not {declared}, as its data URL says")
    return data, _checked(found or declared, wanted=media.media_type)


def with_base64(hint: Any) -> Any:
    """Return an annotation in which each plain `bytes` is base64: also in unions, lists and the like."""
    if hint is bytes:
        return Annotated[bytes, Media()]
    origin: Any = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin is Annotated:
        if inner[0] is bytes:
            return hint if any(isinstance(each, Media) for each in inner[1:]) else Annotated[(*inner, Media())]
        return Annotated[(with_base64(inner[0]), *inner[1:])]
    if origin in {typing.Union, types.UnionType}:
        return reduce(or_, map(with_base64, inner))
    if inner and origin in _HOLDERS:
        return types.GenericAlias(origin, tuple(map(with_base64, inner)))
    return hint


def tell_encodings(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with descriptions that name base64: some providers show a model only descriptions."""
    for it in schema.get("properties", {}).values():
        parts = [it, *it.get("anyOf", ()), it.get("items", {})]
        if any(isinstance(each, dict) and each.get("contentEncoding") == "base64" for each in parts):
            # pydantic writes bytes as text there, which would be read as base64; the function has its default all the same.
            if it.get("default"):
                del it["default"]
            it["description"] = f"{it.get('description', '')} As base64, or as a data URL.".strip()
    return schema


def _declared(text: str) -> tuple[str | None, str]:
    """Return the media type of a data URL, and its content; any other text unchanged."""
    if not text.startswith("data:"):
        return None, text
    url = _DATA_URL.match(text)
    if url is None or not url[2].lower().endswith(";base64"):
        raise _fault("This is a data URL without base64: data:image/png;base64,… would be one")
    try:
        return (plain_type(url[1]) if url[1] else None), text[url.end() :]
    except ValueError:
        raise _fault(f"This data URL names no media type: {url[1][:_SHOWN]!r}") from None


def _checked(found: str | None, *, wanted: str) -> str | None:
    if found is not None and not fits(wanted, found):
        raise _fault(f"This is {found}; {wanted} is wanted")
    if found is None and is_known_by_bytes(wanted):
        raise _fault(f"This is not {wanted}")
    if found is not None or wanted == "*/*":
        return found
    if wanted.endswith("/*"):
        raise _fault(f"This is not known to be {wanted}: send it as a data URL, which names its media type")
    return wanted


def _fault(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("file", "{sentence}", {"sentence": sentence})
