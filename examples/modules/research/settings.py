"""What the module may reach, and how much of it."""

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from modules.documents import CLONE

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class ResearchSettings(BaseSettings):
    """`RESEARCH_…` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="RESEARCH_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    docs_root: Path = CLONE
    """The Markdown files below it are what `search_docs` searches."""
    allow_private: bool = False
    """Whether pages of this machine and of private networks may be fetched: whoever can ask can then reach them."""
    fetch_seconds: float = Field(default=15, gt=0, allow_inf_nan=False)
    """For one page in total, redirects included."""
    page_bytes: int = Field(default=2**20, gt=0)
    """Read of one page; the rest is left out."""
    search_url: str | None = None
    """The SearXNG that `web_search` asks, such as `http://searxng:8080`; what stands after a `?` is sent along."""
    search_key: SecretStr | None = None
    """Sent to the search service, and to nobody else."""
    search_key_header: str = "Authorization"
    """The header that carries the key."""
    search_seconds: float = Field(default=10, gt=0, allow_inf_nan=False)
    """For one search."""

    @property
    def search_address(self) -> httpx.URL | None:
        """Where the search service answers."""
        if self.search_url is None:
            return None
        url = httpx.URL(self.search_url)
        path = url.path.rstrip("/")
        return url.copy_with(path=path if path.endswith("/search") else f"{path}/search")

    @model_validator(mode="after")
    def _must_be_sendable(self) -> Self:
        if self.search_url is not None:
            _check_address(self.search_url)
        if _HEADER_NAME.fullmatch(self.search_key_header) is None:
            raise ValueError("RESEARCH_SEARCH_KEY_HEADER must be a header's name, such as X-Api-Key.")
        key = self.search_key.get_secret_value() if self.search_key else ""
        if not (key.isascii() and (key.isprintable() and key == key.strip())):
            raise ValueError("RESEARCH_SEARCH_KEY must be plain ASCII, without spaces around it.")
        return self


def _check_address(text: str) -> None:
    try:
        url = httpx.URL(text)
        _ = urlsplit(text).port  # judges brackets, which httpx does not
    except (httpx.InvalidURL, ValueError):
        raise ValueError("RESEARCH_SEARCH_URL is no address.") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("RESEARCH_SEARCH_URL must begin with http:// or https://, and name a host.")
    if url.userinfo:
        raise ValueError("RESEARCH_SEARCH_URL must have no user or password in it: a key is RESEARCH_SEARCH_KEY.")
