"""Says how an OpenAPI document is served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toolfleet_modules.hosts.serving.options import HostOptions


@dataclass(frozen=True, slots=True)
class OpenApiOptions(HostOptions):
    """The options of an OpenAPI host.

    `document` is a file's path or a URL, `base` the service's URL, `auth` the credential for each security scheme.

    `refresh_seconds`: between two requests for a document that has a URL. `checks_results`: the service's results are
    validated against the document. `slashes`: parameters of paths that may have `/`, as `get_content.path`. `headers`:
    fields of each request, filled in as `auth` is.
    """

    document: str
    base: str | None = None
    tags: Sequence[str] = ()
    paths: Sequence[str] = ()
    auth: Mapping[str, str] = field(default_factory=dict)
    refresh_seconds: float = 300
    checks_results: bool = True
    slashes: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
