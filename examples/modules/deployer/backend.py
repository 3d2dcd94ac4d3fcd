"""What answers behind a front."""

from typing import Protocol

from modules.deployer.front import Upstream


class Backend(Upstream, Protocol):
    """Is reached by `connect` from `start` to `stop`."""

    async def start(self) -> None:
        """Begin to listen. Raises `OSError`."""
        ...

    def why_ended(self) -> str | None:
        """`None` while it runs; else a sentence."""
        ...

    async def is_healthy(self) -> bool:
        """Whether it answers as it should; takes a few seconds at most."""
        ...

    async def stop(self) -> None:
        """End it, with all that it has started."""
        ...
