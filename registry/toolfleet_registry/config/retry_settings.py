"""Declares the settings that decide when a call is tried again; a part of `Settings`."""

from pydantic_settings import BaseSettings


class RetrySettings(BaseSettings, defer_build=True):
    """What is repeated beyond what can do no harm."""

    retry_undeclared: bool = False
    """Whether a tool that declares no effect is tried once more after it has answered that it failed. It may have done the thing, and
    then does it twice: for fleets whose modules count on that. A module may say the same of itself: `retries_undeclared`. Such failures make no
    dead letters, as they make none without it."""
