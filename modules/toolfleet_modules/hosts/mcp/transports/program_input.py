"""Writes messages to a program's standard input: those of one moment at once, for each writing takes its time."""

import asyncio
from collections.abc import Callable


class ProgramInput:
    """What a program reads, one message a line. `lost` is called when it reads no more."""

    def __init__(self, stream: asyncio.StreamWriter, lost: Callable[[], None]) -> None:
        self._stream, self._lost = stream, lost
        self._held: list[bytes] = []

    def write(self, message: bytes) -> None:
        """Have a message written soon. What a program does not read is held: whoever sends much waits with `drain`."""
        if not self._held:
            asyncio.get_running_loop().call_soon(self._flush)
        self._held.append(message)

    async def drain(self) -> None:
        """Return when there is place for more. Raises `OSError` if the program reads no more."""
        self._flush()
        await self._stream.drain()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._stream.is_closing():
            self._stream.write(b"\n".join((*held, b"")))
        if self._stream.is_closing():
            self._lost()
