"""A lease that ends after so many looks at it, or when a test says so."""

from dataclasses import dataclass


@dataclass
class FiniteLease:
    """Live for the next `looks`; with `seconds` left as long as it is."""

    looks: int
    attempt: int = 1
    seconds: float = 9.0
    replica: str = ""
    is_scattered: bool = False

    def seconds_left(self) -> float:
        self.looks -= 1
        return self.seconds if self.looks >= 0 else 0.0

    async def move(self, replica: str) -> None:
        self.replica = replica

    def note_request(self, seconds: float, *, ended_at: float) -> None:
        """Nobody asks."""


def over() -> FiniteLease:
    """One that is over already."""
    return FiniteLease(0)
