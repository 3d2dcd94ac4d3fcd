"""Tells refusals of Redis apart: those that pass, those that last until an operator acts, and errors of one command."""

from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from toolfleet_registry.errors import BrokerUnavailable

# Redis takes no writes until an operator frees memory, repairs its disk, or brings its replicas back.
_LASTING = ("OOM", "MISCONF", "NOREPLICAS")
# Redis loads its data, runs a script, or is a replica of a master that is, or soon will be, another server.
_PASSING = ("LOADING", "BUSY", "READONLY", "MASTERDOWN")

_CODES: dict[type[object], str] = {
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}


def is_one_of(codes: tuple[str, ...], error: RedisError | str) -> bool:
    """Return whether Redis refused a command with one of these codes, such as `OOM`.

    redis-py turns some codes into a class and takes them out of the text. Redis before version 7 has a script's errors as
    `ERR Error running script … -OOM …`.
    """
    text = str(error)
    return text.startswith(codes) or any(f": -{code} " in text for code in codes) or _CODES.get(type(error)) in codes


def unavailable(reason: RedisError | str) -> BrokerUnavailable | None:
    """Return the error to raise where Redis gave this reason for not taking a call, or None for any other reason.

    Redis gives these reasons before it has written anything: it does not take the script, or not its first write.
    """
    if is_one_of(_LASTING, reason):
        return BrokerUnavailable(str(reason), passes=False)
    if is_one_of(_PASSING, reason):
        return BrokerUnavailable(str(reason), passes=True)
    return None
