"""Finds the settings of the fleet that a program talks to."""

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import check_redis_url, fleet_url
from toolfleet_registry.settings import Settings, load_settings


def fleet_settings(url: str | None = None, settings: Settings | None = None) -> Settings:
    """Return the settings with a Redis URL: `url`, or their own. Raises `SettingsError` where there is none, or no such one."""
    settings = settings or load_settings()
    if url is not None:
        try:
            settings = settings.model_copy(update={"redis_url": check_redis_url(url)})
        except ValueError as exc:
            raise SettingsError(f"The Redis URL {exc}.") from exc
    fleet_url(settings.redis_url)
    return settings
