"""Bounds the names that a call carries of its user and its intention: they become parts of keys, headers and records."""

LONGEST = 256
"""Characters of a user id, and of an idempotency key: a conversation's and a model's ids together are half of that."""


def fault_in_names(*, user_ids: tuple[str | None, ...], idempotency_key: str | None) -> str | None:
    """Why a call cannot be made under these names, or `None`. Never repeats one."""
    for user_id in user_ids:
        if user_id is not None and len(user_id) > LONGEST:
            return f"The user id has more than {LONGEST} characters."
    if idempotency_key is not None and len(idempotency_key) > LONGEST:
        return f"The idempotency key has more than {LONGEST} characters."
    return None
