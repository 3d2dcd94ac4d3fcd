"""Reads bytes out of a call's arguments, where they are base64 or a data URL, and says so in the arguments' schema."""

import re
import types
import typing
from base64 import b64encode
from binascii import a2b_base64
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from toolfleet_registry.functions.media_types import fits, is_known_by_bytes, plain_type, recognised

_DATA_URL = re.compile(r"data:([^,;]{0,130})((?:;[^,;]{0,100}){0,5}),", re.ASCII)
_SPACE = str.maketrans("", "", " \t\r\n")
_SHOWN = 80  # characters of a media type in an input
_HOLDERS: frozenset[Any] = frozenset({list, dict, tuple, set, frozenset})


@dataclass(frozen=True, slots=True)
class Media:
    """The media type of a `bytes` parameter: `Annotated[bytes, Media("image/png", most_bytes=100_000)]`.

    A media type such as `image/png`, or `image/*` for any image. Raises `ValueError` for an invalid one.
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
    """The JSON Schema of base64 of such bytes."""
    exact = {} if "*" in media_type else {"contentMediaType": media_type}
    return {"type": "string", "contentEncoding": "base64", **exact}


def decoded(text: Any, media: Media) -> tuple[bytes, str | None]:
    """The bytes and, if it can be told, their media type. Raises `PydanticCustomError` in one sentence, without the value."""
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
    """An annotation in which each plain `bytes` is base64: also in unions, lists and the like."""
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
