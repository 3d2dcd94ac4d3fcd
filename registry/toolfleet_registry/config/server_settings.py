"""Declares the settings for what the fleet is given: its Redis, and the clocks of its machines; a part of `Settings`."""

from pydantic import Field
from pydantic_settings import BaseSettings


class ServerSettings(BaseSettings, defer_build=True):
    """What a worker insists on."""

    allow_eviction: bool = False
    """Whether workers start at a Redis that deletes keys when its memory is full: it forgets what was executed, and runs it twice."""
    max_clock_offset_seconds: float = Field(default=300, gt=1)
    """A worker whose own clock is further off takes no calls: certificates, tokens and logs are wrong there."""
