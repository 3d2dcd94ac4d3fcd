"""How long a place is remembered."""

from datetime import timedelta

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class LocationSettings(BaseSettings):
    """`LOCATION_…` in the environment. Where places are kept, the settings of users' files say."""

    model_config = SettingsConfigDict(env_prefix="LOCATION_", frozen=True, env_ignore_empty=True)

    keep_days: float = Field(default=30, gt=0, le=3650)
    """From when a place was said; then it is forgotten."""

    @property
    def kept(self) -> timedelta:
        """For how long that is."""
        return timedelta(days=self.keep_days)
