"""What was measured of a gateway, as a table, and the goals that it is held against."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

IN_FLIGHT, STREAMS = 200, 1_000
AGENT, REST, MCP = "a Python agent", "over REST", "over MCP"
FASTMCP, SDK, CONTEXTFORGE = "FastMCP, directly", "the MCP SDK, directly", "ContextForge, directly"

LEAST_RATIO, LEAST_OF_FASTMCP, MOST_MS, MOST_MB = 0.55, 1.1, 2.0, 150


@dataclass(frozen=True)
class GatewayFigures:
    """What was measured of each way, by round: calls a second, p50 in ms of calls one at a time, CPU ms a call; and MB of the gateway with so many streams."""

    rates: dict[str, list[float]]
    latencies: dict[str, list[float]]
    cpu_ms: dict[str, list[float]]
    megabytes: tuple[float, float]
    streams: int

    @classmethod
    def empty(cls, ways: Iterable[str], megabytes: tuple[float, float], streams: int) -> "GatewayFigures":
        """Nothing yet of these ways, but the gateway's memory."""
        names = tuple(ways)
        rates, latencies, cpu_ms = ({name: list[float]() for name in names} for _ in range(3))
        return cls(rates, latencies, cpu_ms, megabytes, streams)

    def ratio(self, one: str, other: str) -> float:
        """How many times as many calls a second, in the same rounds."""
        return statistics.median(a / b for a, b in zip(self.rates[one], self.rates[other], strict=True))

    def added_ms(self, one: str) -> float:
        """By how much calls take longer than a Python agent's."""
        pairs = zip(self.latencies[one], self.latencies[AGENT], strict=True)
        return statistics.median(a - b for a, b in pairs)

    @property
    def is_missed(self) -> bool:
        """Whether a goal is."""
        slow = [way for way in (REST, MCP) if self.ratio(way, AGENT) < LEAST_RATIO or self.added_ms(way) > MOST_MS]
        return bool(slow) or self.ratio(MCP, FASTMCP) < LEAST_OF_FASTMCP or self.megabytes[1] > MOST_MB

    def _goals(self) -> str:
        own = f"Goals: {REST} and {MCP} at least {LEAST_RATIO:g} of the agent's rate, at most {MOST_MS:g} ms longer"
        return f"{own}; {MCP} at least {LEAST_OF_FASTMCP:g} times {FASTMCP} ({self.ratio(MCP, FASTMCP):.2f})."

    def lines(self) -> list[str]:
        """The table, and what of it is a goal."""
        median, (empty, full) = statistics.median, self.megabytes
        rows = [
            f"| {way} | {median(self.rates[way]):,.0f} | {self.ratio(way, AGENT):.2f} | {median(self.cpu_ms[way]):.2f} "
            f"| {median(self.latencies[way]):.2f} | {self.added_ms(way):+.2f} |"
            for way in self.rates
        ]
        return [
            f"| | calls/s, {IN_FLIGHT} in flight | of the agent's | CPU ms a call, its processes | p50 ms, one at a time | longer than the agent's |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            "",
            self._goals(),
            f"The gateway has {full:.0f} MB with {self.streams:,} streams (goal {MOST_MB}), {empty:.0f} without.",
        ]
