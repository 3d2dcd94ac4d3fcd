"""Runs what a command asks of an operator of the fleet that the settings name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from toolfleet_cli.console.output import fail, progress
from toolfleet_registry.catalog.operator import Operator, operating
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.settings import load_settings

T = TypeVar("T")


def operate(work: Callable[[Operator], Awaitable[T]]) -> T:
    """Do the work and return what comes of it; what is refused ends the command with its reason."""

    async def run() -> T:
        async with progress("Asking the registry"), operating(load_settings()) as operator:
            return await work(operator)

    try:
        return asyncio.run(run())
    except OperationRefused as exc:
        fail(str(exc), code=1)
