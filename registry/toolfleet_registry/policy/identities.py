"""Bounds the names that a call carries of its user, its intention and its tool's version: they become parts of keys, headers and records."""

LONGEST = 256
"""Characters of a user id, an idempotency key and a tool's version: a conversation's and a model's ids together are half of that."""


def fault_in_names(
    *, user_ids: tuple[str | None, ...], idempotency_key: str | None, tool_version: str | None
) -> str | None:
    """Return why a call cannot be made under these names, or `None`. Never repeats one."""
    for user_id in user_ids:
        if user_id is not None and len(user_id) > LONGEST:
            return f"The user id has more than {LONGEST} characters."
    if idempotency_key is not None and len(idempotency_key) > LONGEST:
        return f"The idempotency key has more than {LONGEST} characters."
    return fault_in_version(tool_version)


def fault_in_version(named: str | None) -> str | None:
    """Return why a call cannot name this version of its tool, whichever is in effect, or `None`. Never repeats it."""
    if named == "":
        return "The tool version is empty; a call of whichever version leaves it out."
    if named is not None and len(named) > LONGEST:
        return f"The tool version has more than {LONGEST} characters."
    return None
