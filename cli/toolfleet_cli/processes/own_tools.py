"""Takes up the fleet's own tools when their folder appears while `toolfleet up` runs."""

import time
from pathlib import Path

from toolfleet_cli.console.output import note
from toolfleet_cli.local.fleet import LocalFleet
from toolfleet_cli.local.hosted_modules import check_hosted, own_tools
from toolfleet_cli.processes.extras import need
from toolfleet_registry.errors import SettingsError

_CHECK_SECONDS = 0.5


class OwnTools:
    """Of the fleet that runs in the folder `start`."""

    def __init__(self, fleet: LocalFleet, start: Path) -> None:
        self._fleet = fleet
        self._start = start
        self._check_at = 0.0
        self._fault = ""

    def take_up(self) -> None:
        """Serve the folder if it has appeared since. What is in the way is said once."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_SECONDS
        found = own_tools(self._start, self._fleet.hosted)
        if found is None:
            return
        try:
            need("host")
            check_hosted(found, {*self._fleet.settings.modules, *self._fleet.processes()})
        except SettingsError as exc:
            if str(exc) != self._fault:
                note(str(exc))
            self._fault = str(exc)
            return
        note(f"The tools in {found.source} are served from now on")
        self._fleet.host(found)
