"""Searching the web: a port, and the services behind it."""

from modules.research.web_search.choice import provider_of
from modules.research.web_search.provider import SearchProvider, WebResult, bounded, plain

__all__ = ["SearchProvider", "WebResult", "bounded", "plain", "provider_of"]
