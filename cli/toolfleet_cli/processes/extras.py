"""Says which command needs which of the optional libraries."""

import importlib.util

from toolfleet_registry.errors import SettingsError

_LIBRARIES = {
    "worker": ("httptools",),
    "flower": ("flower",),
    "up": ("httptools", "flower"),
    "demo": ("httptools", "flower", "mcp", "watchfiles", "yaml"),
    "gateway": ("httptools", "jwt", "mcp", "starlette", "uvicorn", "uvloop"),
    "mcp": ("jwt", "mcp", "starlette"),
    "host": ("httpx", "packaging", "starlette", "uvicorn", "watchfiles", "yaml"),
    "host mcp": ("starlette", "uvicorn", "mcp"),
}
_EXTRAS = {
    "gateway": "gateway",
    "mcp": "gateway",
    "host": "hosts",
    "host mcp": "mcp",
    "demo": "worker,hosts,mcp",
}  # for others, `worker`


def missing_for(command: str) -> list[str]:
    """The libraries that the command needs, and that are not here."""
    return [name for name in _LIBRARIES[command] if importlib.util.find_spec(name) is None]


def need(command: str) -> None:
    """Raise `SettingsError`, with what to install, if the command cannot run here."""
    if missing := missing_for(command):
        raise SettingsError(
            f"`toolfleet {command}` needs {' and '.join(missing)}, which an agent does not: pip install 'toolfleet[{_EXTRAS.get(command, 'worker')}]'."
        )
