"""Knows by which API key or token the running code was asked to call something in another user's name: its holder does not approve that."""

from contextvars import ContextVar

_credential: ContextVar[tuple[str, str | None] | None] = ContextVar("toolfleet_credential", default=None)


def set_credential(name: str, user_id: str | None) -> None:
    """Set what the running task's request came with: `key <id>` or `token <subject>`, and its own user. Tasks that it makes have it, too."""
    _credential.set((name, user_id))


def asked_by_here(user_id: str | None) -> tuple[str, ...]:
    """Return the names of the credential and its user if it asks in the name of another user, `user_id`; else none.

    None for its own user: that one is known by the call, and messages without it are read by older versions.
    """
    name, own = _credential.get() or (None, None)
    if name is None or (own is not None and own == user_id):
        return ()
    return (name,) if own is None else (name, f"user {own}")
