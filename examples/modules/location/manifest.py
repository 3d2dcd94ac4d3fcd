"""What `location` offers, who may call it, and what a repeat would do.

The module is one of `TOOLFLEET_CONTEXT_MODULES`: the agent's core, never the model, tells it in which conversation it is asked.
"""

from modules.files import FileSettings
from modules.files.database import Database
from modules.location.places import METADATA, Places
from modules.location.settings import LocationSettings
from modules.location.tools import Location
from toolfleet.sdk import Module

_SECONDS = 20  # the database is waited for, for five at each step


def module_for(settings: LocationSettings, files: FileSettings) -> Module:
    """The module on the database of users' files. Raises `ValueError` for settings that cannot be right."""
    database = Database(files, tables=METADATA, what="places")
    tools = Location(Places(database, kept=settings.kept))
    module = Module(
        "location",
        description="Remembers where the user has said to be, for the conversation's channel only, and reckons with it.",
    )
    module.on_shutdown(database.close)
    module.add(tools.set_place, effect="idempotent", timeout_seconds=_SECONDS)
    module.add(tools.where_am_i, effect="read", timeout_seconds=_SECONDS)
    module.add(tools.distance, effect="read", timeout_seconds=_SECONDS)
    module.add(tools.share, effect="read", timeout_seconds=_SECONDS)
    module.add(tools.forget_place, effect="idempotent", timeout_seconds=_SECONDS)
    return module
