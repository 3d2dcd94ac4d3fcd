"""Checks whether a worker or beat of this machine is alive, or ready, for the repeated health check of a container."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolfleet_registry.settings import Settings

_LANES = ["fast", "slow", "all"]
_ANSWER_SECONDS = 4.0  # with the start of this process 5 s at most; a process that needs longer is not well


def is_well(role: str, settings: "Settings", *, live: bool) -> bool:
    """Return whether a `worker` or `beat` of the fleet answers here: that it is ready, or only that it is alive.

    The settings may name a worker's lane; if they do not, any is accepted.
    """
    from toolfleet_tasks.control.probe_sockets import says_yes, sockets_of

    lanes = [settings.lane] if "lane" in settings.model_fields_set else _LANES
    paths = [path for each in (lanes if role == "worker" else [role]) for path in sockets_of(each, settings)]
    return says_yes(paths, "/livez" if live else "/readyz", seconds=_ANSWER_SECONDS)


def quick_check(words: list[str]) -> int | None:
    """Return the exit code of `worker|beat --check`; `None` for any other command line, and for one with a mistake."""
    role, *options = words or [""]
    if role not in {"worker", "beat"} or "--check" not in options:
        return None
    lane = _lane_in([option for option in options if option not in {"--check", "--live"}], role)
    if lane is None:
        return None
    from toolfleet_registry.errors import SettingsError
    from toolfleet_registry.settings import load_settings

    try:
        settings = load_settings(**({"lane": lane} if lane else {}))
    except SettingsError:
        return None
    if settings.redis_url is None:
        return None
    return 0 if is_well(role, settings, live="--live" in options) else 1


def _lane_in(options: list[str], role: str) -> str | None:
    """Return the lane that they name, "" for none; `None` if they say anything else."""
    words = [part for option in options for part in option.split("=", 1)]
    match words:
        case []:
            return ""
        case ["--lane", "fast" | "slow" | "all" as lane] if role == "worker":
            return lane
        case _:
            return None
