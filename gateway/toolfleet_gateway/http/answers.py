"""Writes what routes answer: models as JSON."""

import json
from collections.abc import Mapping

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from starlette.responses import Response

from toolfleet_registry.system.http_bodies import without_lone_surrogates

JSON = "application/json"


def json_answer(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a model as JSON, without `None` values."""
    return text_answer(json_text(model), status, headers)


def json_text(model: BaseModel, *, with_none: bool = False) -> str:
    """Return a model as JSON, with or without `None` values.

    A lone surrogate, which texts of agents may have, becomes U+FFFD.
    """
    try:
        return model.model_dump_json(exclude_none=not with_none, by_alias=True)
    except PydanticSerializationError:  # no UTF-8 has such a half
        fields = model.model_dump(exclude_none=not with_none, by_alias=True)
        plain = json.loads(json.dumps(fields, default=to_jsonable_python))
        return to_json(without_lone_surrogates(plain), inf_nan_mode="null").decode()


def text_answer(text: str | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer whose text is JSON already."""
    return Response(text, status, headers, media_type=JSON)


def nothing(status: int = 204, headers: Mapping[str, str] | None = None) -> Response:
    """An answer without a body."""
    return Response(None, status, headers)
