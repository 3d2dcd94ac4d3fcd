"""Keeps credentials that are made for a fleet at its start, each in a file that only its owner reads."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from toolfleet_registry.access.key_text import new_key_text, read_key_text


def kept_key(path: Path) -> str:
    """The gateway's key in the file; a new one, which the file has from then on, if there is none that can be read.

    Raises `OSError` where the file cannot be written.
    """
    return _kept(path, lambda text: read_key_text(text) is not None, lambda: new_key_text().text)


def kept_login(path: Path) -> str:
    """The name and password, with a colon between, in the file; new ones as `kept_key` has it. Raises `OSError` as that does."""
    return _kept(path, lambda text: 0 < text.find(":") < len(text) - 1, new_login)


def new_login() -> str:
    """Make a name and password, with a colon between."""
    return f"toolfleet:{secrets.token_urlsafe(32)}"


def _kept(path: Path, is_good: Callable[[str], bool], make: Callable[[], str]) -> str:
    try:
        if is_good(found := path.read_text(encoding="ascii").strip()):
            path.chmod(0o600)
            return found
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    made = make()
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # of a process that died here, and had our number
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{made}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return made
