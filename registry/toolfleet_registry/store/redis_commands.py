"""Asks Redis on a registry's behalf: every value comes as bytes, and an error says which server does not answer."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from redis import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.redis.servers import address_of, reason_of

T = TypeVar("T")

_PATIENCE_SECONDS = 5
_NAMES_AT_ONCE = 1000  # Lua can take some thousand values off a list

# However the client was built: one value that is no text would else fail the reading of all.
_AS_BYTES = {NEVER_DECODE: True}


class RedisCommands:
    """Commands and scripts over a client. Raises `FleetUnavailable`."""

    def __init__(self, redis: Redis, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._redis = redis
        self._patience_seconds = patience_seconds

    def ask(self, *command: str | bytes | int) -> Any:
        """Send one command and return Redis's answer."""
        with self._answering():
            return self._redis.execute_command(*command, **_AS_BYTES)

    def ask_many(self, key: str, fields: Sequence[str | bytes]) -> list[bytes | None]:
        """The values of a hash's fields, a bounded number at once."""
        found = list[bytes | None]()
        for batch in parts(fields):
            found += self.ask("HMGET", key, *batch)
        return found

    def write(self, *commands: Sequence[str]) -> None:
        """Have several commands done at once."""
        with self._answering(), self._redis.pipeline(transaction=True) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            pipe.execute()

    def ask_script(self, script: Script, **named: Any) -> Any:
        """Run a script and return its result."""
        return self.run(script, script.parameters(**named))

    def run(self, script: Script, parameters: Parameters) -> Any:
        """The same, whether Redis has seen it before or not."""
        with self._answering():
            try:
                return self._redis.execute_command("EVALSHA", script.digest, *parameters, **_AS_BYTES)
            except NoScriptError:
                return self._redis.execute_command("EVAL", script.text, *parameters, **_AS_BYTES)

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except (RedisError, OSError) as exc:
            reason = reason_of(exc, f"no answer within {self._patience_seconds:g} s")
            raise FleetUnavailable(f"Redis at {address_of(self._redis)} does not answer: {reason}") from exc


def parts(names: Sequence[T]) -> Generator[Sequence[T]]:
    """The names, so many at once as a script can take."""
    return (names[start : start + _NAMES_AT_ONCE] for start in range(0, len(names), _NAMES_AT_ONCE))
