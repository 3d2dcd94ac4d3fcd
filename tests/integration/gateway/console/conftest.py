"""What tests of the console share: a gateway of a fleet that has something to show."""

from support.console.console_fixtures import bed, gateway, worker

__all__ = ["bed", "gateway", "worker"]
