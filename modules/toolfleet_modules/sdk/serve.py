"""Serves a module with uvicorn, with the options of its command line. An unformatted log line begins with its level."""

import asyncio
import logging
from typing import Any

from uvicorn.main import main
from uvicorn.protocols.http.auto import AutoHTTPProtocol


class JoinedWrites:
    """A transport that holds written data until the next turn of the loop. All else is delegated to `transport`."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write data soon, together with all other data by then."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        """Write the held data, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class JoinedHttpProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's protocol on a transport that joins writes."""

    def connection_made(self, transport: Any) -> None:
        """Serve a connection, and join its writes."""
        joined: Any = JoinedWrites(transport, asyncio.get_running_loop())
        super().connection_made(joined)


if __name__ == "__main__":
    # Where a module has not set up its logging, Python prints warnings bare: they could not be told from other output.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("%(levelname)s: %(name)s: %(message)s"))
    main()
