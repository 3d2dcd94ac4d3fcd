"""Asks Redis on a registry's behalf: every value comes as bytes, and an error says which server does not answer."""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from redis import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.redis_errors import address_of, reason_of

T = TypeVar("T")

_PATIENCE_SECONDS = 5
_NAMES_AT_ONCE = 1000  # Lua can take some thousand values off a list

# However the client was built: one value that is no text would else fail the reading of all.
_AS_BYTES = {NEVER_DECODE: True}


class RedisCommands:
    """Commands and scripts over a client. Raises `FleetUnavailable`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def ask(self, *command: str | bytes | int) -> Any:
        """What Redis says to one command."""
        with self._answering():
            return self._redis.execute_command(*command, **_AS_BYTES)

    def ask_many(self, key: str, fields: Sequence[str | bytes]) -> list[bytes | None]:
        """The values of a hash's fields, a bounded number at once."""
        found = list[bytes | None]()
        for batch in parts(fields):
            found += self.ask("HMGET", key, *batch)
        return found

    def evaluate(self, script: str, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        """What a script returns, which Redis may have seen before or not."""
        rest = (len(keys), *keys, *arguments)
        with self._answering():
            try:
                return self._redis.execute_command("EVALSHA", _digest_of(script), *rest, **_AS_BYTES)
            except NoScriptError:
                return self._redis.execute_command("EVAL", script, *rest, **_AS_BYTES)

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except (RedisError, OSError) as exc:
            reason = reason_of(exc, f"no answer within {_PATIENCE_SECONDS} s")
            raise FleetUnavailable(f"Redis at {address_of(self._redis)} does not answer: {reason}") from exc


def parts(names: Sequence[T]) -> Generator[Sequence[T]]:
    """The names, so many at once as a script can take."""
    return (names[start : start + _NAMES_AT_ONCE] for start in range(0, len(names), _NAMES_AT_ONCE))


@cache
def _digest_of(script: str) -> str:
    """What Redis calls it, once it has seen it."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
