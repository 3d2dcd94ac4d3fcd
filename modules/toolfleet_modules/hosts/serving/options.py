"""Configures the common options of all hosts."""

from dataclasses import KW_ONLY, dataclass, field

from toolfleet_modules.hosts.serving.secrets import Secrets
from toolfleet_registry.contracts.tool_definition import ToolLines


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The options of serving the module `name`.

    `key`: with which the fleet signs its calls; `secrets`: values that its tools may use, and that are hidden
    everywhere.

    `calls`: at work at once; `request_bytes`, `result_bytes`: of one call; `longest_call_seconds`: how long a caller
    may wait for one, retries included. `lines`: the settings' overrides for its tools.
    """

    name: str
    _: KW_ONLY
    description: str = ""
    key: str = field(default="", repr=False)
    secrets: Secrets = field(default_factory=lambda: Secrets({}))
    calls: int = 1000
    request_bytes: int = 8 * 2**20
    result_bytes: int = 4 * 2**20
    longest_call_seconds: float = 4 * 3600
    lines: ToolLines = field(default_factory=ToolLines)
