"""What `research` offers, who may call it, and what a repeat would do."""

from modules.research.settings import ResearchSettings
from modules.research.tools import Research
from toolfleet.sdk import Module

_MARGIN_SECONDS = 5  # to report that it took too long


def module_for(settings: ResearchSettings) -> Module:
    """The time limits of `fetch_webpage`, `check_url` and `web_search` follow the settings."""
    tools = Research.of(settings)
    module = Module(
        "research", description="Searches the web, reads public web pages and searches this project's documentation."
    )
    module.add(
        tools.fetch_webpage, permission="guest", effect="read", timeout_seconds=settings.fetch_seconds + _MARGIN_SECONDS
    )
    module.add(
        tools.check_url, permission="guest", effect="read", timeout_seconds=settings.fetch_seconds + _MARGIN_SECONDS
    )
    module.add(
        tools.web_search, permission="guest", effect="read", timeout_seconds=settings.search_seconds + _MARGIN_SECONDS
    )
    module.add(tools.search_docs, permission="guest", effect="read")
    return module
