"""What the module may reach, and how much of it."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from modules.documents import CLONE


class ResearchSettings(BaseSettings):
    """`RESEARCH_…` in the environment."""

    model_config = SettingsConfigDict(env_prefix="RESEARCH_", frozen=True, env_ignore_empty=True)

    docs_root: Path = CLONE
    """The Markdown files below it are what `search_docs` searches."""
    allow_private: bool = False
    """Whether pages of this machine and of private networks may be fetched: whoever can ask can then reach them."""
    fetch_seconds: float = Field(default=15, gt=0, allow_inf_nan=False)
    """For one page in total, redirects included."""
    page_bytes: int = Field(default=2**20, gt=0)
    """Read of one page; the rest is left out."""
