"""Keeps the key of the gateways that are started with a fleet, in a file that nobody else reads."""

import os
from pathlib import Path

from toolfleet_registry.access.key_text import new_key_text, read_key_text


def kept_key(path: Path) -> str:
    """The key in the file; a new one, which the file has from then on, if there is none that can be read.

    Raises `OSError` where the file cannot be written.
    """
    try:
        if (found := read_key_text(path.read_text(encoding="ascii").strip())) is not None:
            path.chmod(0o600)
            return found.text
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    made = new_key_text().text
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # of a process that died here, and had our number
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{made}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return made
