"""Judges requests by openapi-core, which reads a document by itself: a second opinion beside the tests' own expectations."""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from jsonschema.exceptions import UnknownType
from openapi_core import Config, OpenAPI
from openapi_core.datatypes import RequestParameters
from werkzeug.datastructures import Headers, ImmutableMultiDict

from toolfleet_modules.hosts.openapi.outgoing_request import OutgoingRequest


@dataclass
class _Asked:
    """A request in the form that openapi-core takes."""

    host_url: str
    path: str
    method: str
    content_type: str
    body: bytes | None
    parameters: RequestParameters


DISAGREEMENTS: Sequence[tuple[str, str, str]] = [
    (
        r"b\\*['\"].* is not (of type|valid under any)",
        r"binary|octet|contentMediaType|/pdf|/zip|image/|file|\+json|\*/\*",
        "It holds bytes of files against `type: string`, and reads no JSON of a type that ends in `+json`, or is `*/*`.",
    ),
    (
        r"'(deepObject|spaceDelimited|pipeDelimited)', '.*not available",
        r"Delimited|deepObject",
        "It reads `deepObject` only with `explode`, and no lists or objects in it; of the other two styles no objects.",
    ),
    (
        "PathNotFound",
        r'"/[^"]*[?#;%(]',
        "It does not find paths of a document that have a query, a fragment, `;` or `(`.",
    ),
    ("Missing required path", r'"(matrix|label)"', "It reads no path parameter of the styles `matrix` and `label`."),
    (
        "Missing required (query|cookie)",
        r'"type": "object".*"explode": true',
        "It looks for the name of an object that is exploded.",
    ),
    ("TypeError: Expected a string", r'"type": \[', "It reads no lists of types in parameters and forms."),
    ("Unknown type 'file'", '"file"', "It does not know the type of Swagger 2, which documents still have."),
    ("Missing required request body", "form", "It takes a form without a field for no body."),
    ("Missing required request body", r'"3\.0.*"(get|head)"', "It wants the body of GET, which OpenAPI 3.0 ignores."),
    (
        "mimetype not found",
        r"; variant=|/\*",
        "It compares types with all their parameters, and takes no type for a range.",
    ),
    (
        r"Value \{\} not valid",
        "form-data.*(allOf|anyOf|oneOf|ref)",
        "It reads no parts of a form whose schema is composed.",
    ),
]
"""What openapi-core says of right requests, what their documents have, and why it is wrong; the first two as patterns."""


def second_judge(document: Mapping[str, Any], base: str, request: OutgoingRequest) -> list[str]:
    """Return what is wrong with a request by the document, whose service is at `base`, but for known disagreements."""
    servers = {"servers": [{"url": base}]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own, about what it will do otherwise one day
        judge = OpenAPI.from_dict({**document, **servers}, config=Config(spec_validator_cls=_NO_CHECK))
        try:
            said = [_words(each) for each in judge.unmarshal_request(_asked(request)).errors]
        except (TypeError, UnknownType) as exc:  # defects of its own
            said = [_words(exc)]
    text = json.dumps(document)
    known = [pattern for pattern, has, _ in DISAGREEMENTS if re.search(has, text)]
    return [each for each in said if not any(re.search(pattern, each) for pattern in known)]


_NO_CHECK: Any = None  # tests have documents that are wrong elsewhere


def _asked(request: OutgoingRequest) -> _Asked:
    url = urlsplit(request.url)
    headers = Headers(list(request.headers.items()))
    cookies = SimpleCookie(headers.get("Cookie", ""))
    return _Asked(
        f"{url.scheme}://{url.netloc}",
        url.path,
        request.method.lower(),
        headers.get("Content-Type", ""),
        request.body or None,
        RequestParameters(
            query=ImmutableMultiDict(parse_qsl(url.query, keep_blank_values=True)),
            header=headers,
            cookie=ImmutableMultiDict((name, each.value) for name, each in cookies.items()),
        ),
    )


def _words(error: BaseException | None) -> str:
    """Return an error with its causes, each with its kind."""
    return "" if error is None else f"{type(error).__name__}: {error}"[:2000] + _words(error.__cause__)
