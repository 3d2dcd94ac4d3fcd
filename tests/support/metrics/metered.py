"""A gateway with a port for its metrics, and what is done with its fleet so that all of them have a value."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.metrics.scraping import Series, scrape, sum_of
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import held_port


@dataclass
class Metered:
    """The gateway. Workers come and go."""

    bed: TestBed
    gateway: Gateway
    port: int

    def scrape(self) -> Series:
        return scrape(self.port)

    def says(self, name: str, **labels: str) -> float:
        return sum_of(self.scrape(), name, **labels)

    async def scale(self, lane: str = "fast") -> httpx.Response:
        async with self.gateway.client() as client:
            return await client.get(f"/scale/{lane}")

    async def use(self, caller: Caller) -> None:
        """Have three calls end well and three badly, and ask the gateway something; a worker runs."""
        async with ToolFleet(settings=self.bed.settings) as fleet:
            for _ in range(3):
                assert (await fleet.call(ToolCall(tool_name="owls.echo", arguments={"word": "hoot"}), caller)).success
                assert not (await fleet.call(ToolCall(tool_name="owls.fail"), caller)).success
        async with self.gateway.client() as client:
            assert (await client.get("/tools")).status_code == 200


@contextmanager
def metered_gateway(bed: TestBed) -> Generator[Metered]:
    """A gateway of this fleet."""
    with held_port() as port, gateway_process(bed, env={"TOOLFLEET_METRICS_PORT": str(port)}) as gateway:
        yield Metered(bed, gateway, port)
