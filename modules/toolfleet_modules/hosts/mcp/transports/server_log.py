"""Writes what an MCP server says on standard error into the log: a few lines a second, without secrets."""

import asyncio
import json
import logging

from toolfleet_modules.hosts.secrets import HiddenStream, Secrets
from toolfleet_registry.contracts.call_context import LogMessage

_log = logging.getLogger("toolfleet.host.server")

_CHUNK_BYTES = 64 * 2**10
_LONGEST_TEXT = 2000  # characters of a line
_LONGEST_LINE = 64 * 2**10  # bytes that are held until a line ends
_LOGGED_BYTES = (16 * 2**10, 4 * 2**10)  # at once, and a second
_LINE_COST = 100  # bytes of the log in addition to a line's own
_LINES_AT_ONCE = 100  # of what was read in one piece; more than that is no log
_NOTICES = (1, 0.1)  # that lines were left out, at once and a second
_READ_BYTES = (4 * 2**20, 2**20)  # at once and a second: a server that writes more waits


class Allowance:
    """An amount that is used up, and comes again with time: `burst` at most, `rate` a second."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst, self._rate = burst, rate
        self._left = burst
        self._at = asyncio.get_running_loop().time()

    def take(self, amount: float) -> bool:
        """Take an amount; returns whether there was that much."""
        self._renew()
        if self._left < amount:
            return False
        self._left -= amount
        return True

    async def spend(self, amount: float) -> None:
        """Take it in any case, and wait until that is made up for."""
        self._renew()
        self._left -= amount
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)

    def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now


class ServerLog:
    """The log of one server, in the running loop."""

    def __init__(self, name: str, secrets: Secrets) -> None:
        self._name = name
        self._secrets = secrets
        self._allowance = Allowance(*_LOGGED_BYTES)
        self._notices = Allowance(*_NOTICES)
        self._left_out = 0
        self._said = set[str]()

    def say(self, text: str) -> None:
        """Write a line, if there is room for it."""
        shown = self._secrets.hide(text)[:_LONGEST_TEXT]
        if not self._allowance.take(len(shown) + _LINE_COST):
            self._left_out += 1
            return
        if self._left_out and self._notices.take(1):
            _log.warning("%s: %d lines were left out", self._name, self._left_out)
            self._left_out = 0
        _log.info("%s: %s", self._name, "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in shown))

    def say_message(self, message: LogMessage) -> None:
        """Write a server's log message without a known call."""
        words = message.data if isinstance(message.data, str) else json.dumps(message.data, ensure_ascii=False)
        self.say(f"{message.level}: {words}")

    def warn_once(self, text: str) -> None:
        """Warn of what a server does wrong, the first time."""
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s: %s", self._name, text)

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Write what comes, until its end."""
        hidden, held, pace = HiddenStream(self._secrets), b"", Allowance(*_READ_BYTES)
        while data := await stream.read(_CHUNK_BYTES):
            await pace.spend(len(data))
            *lines, held = (held + hidden.feed(data)).split(b"\n")
            for line in lines[:_LINES_AT_ONCE]:
                self.say(line.decode(errors="replace").rstrip("\r"))
            self._left_out += len(lines[_LINES_AT_ONCE:])
            if len(held) > _LONGEST_LINE:
                self.say(held.decode(errors="replace"))
                held = b""
        if rest := held + hidden.end():
            self.say(rest.decode(errors="replace"))
