"""Writes what routes answer: models as JSON."""

from collections.abc import Mapping

from pydantic import BaseModel
from starlette.responses import Response

JSON = "application/json"


def json_answer(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A model as JSON, without what is `None`."""
    return text_answer(model.model_dump_json(exclude_none=True, by_alias=True), status, headers)


def text_answer(text: str | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """What is JSON already."""
    return Response(text, status, headers, media_type=JSON)


def nothing(status: int = 204, headers: Mapping[str, str] | None = None) -> Response:
    """An answer without a body."""
    return Response(None, status, headers)
