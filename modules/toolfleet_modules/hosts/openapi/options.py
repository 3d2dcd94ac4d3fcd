"""Says how an OpenAPI document is served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toolfleet_modules.hosts.serving.secrets import Secrets


@dataclass(frozen=True, slots=True)
class OpenApiOptions:
    """`document` is a file's path or a URL, `base` where the service is, `auth` what is sent for which security scheme.

    `refresh_seconds`: between two looks at a document that has a URL. `checks_results`: what the service returns is held
    against the document. `longest_call_seconds`: how long a caller may wait for a call, retries included.
    """

    name: str
    document: str
    base: str | None = None
    tags: Sequence[str] = ()
    paths: Sequence[str] = ()
    auth: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=lambda: Secrets({}))
    description: str = ""
    key: str = ""
    refresh_seconds: float = 300
    checks_results: bool = True
    calls: int = 1000
    request_bytes: int = 8 * 2**20
    result_bytes: int = 4 * 2**20
    longest_call_seconds: float = 4 * 3600
