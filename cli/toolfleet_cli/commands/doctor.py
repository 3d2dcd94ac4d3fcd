"""Checks the fleet and says how to fix what is wrong: `toolfleet doctor`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from toolfleet_cli.console import note, progress
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import load_settings


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(doctor)


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all that was seen.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", metavar="FILE", help="Write a zip for a bug report, too, without secrets and people's data."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--canary-seconds", min=0.1, max=50, help="How long a queue may take to answer its canary.")
    ] = 5.0,
) -> None:
    """Examine the fleet: send a canary through each queue, and look at Redis, workers, clocks, keys, secrets and settings.

    Runs no tool, and takes a minute at most. Ends with 0 if nothing of weight was found, 1 if something was, and 2 if it could not
    look.
    """
    from toolfleet_cli.doctor.bundle import write_bundle
    from toolfleet_cli.doctor.check import Patient
    from toolfleet_cli.doctor.examination import CHECKS, Examination, examine, show

    patient = Patient(load_settings(), canary_seconds=seconds)
    fleet_url(patient.settings.redis_url)  # without an address there is nothing to examine

    async def found_out() -> Examination:
        async with progress("Examining the fleet"):
            return await examine(patient, CHECKS)

    found = asyncio.run(found_out())
    show(found, in_json=as_json)
    if bundle is not None:
        names = write_bundle(bundle, patient, found)
        note(f"{bundle} has {', '.join(names)}. Read it before you send it.")
    raise SystemExit(found.exit_code)
