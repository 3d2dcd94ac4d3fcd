"""What `research` offers, who may call it, and what a repeat would do."""

from modules.research.settings import ResearchSettings
from modules.research.tools import Research
from toolfleet.sdk import Module

_MARGIN_SECONDS = 5  # to report that a page took too long


def module_for(settings: ResearchSettings) -> Module:
    """The time limit of `fetch_webpage` follows the setting."""
    tools = Research.of(settings)
    module = Module("research", description="Reads public web pages and searches this project's documentation.")
    module.add(
        tools.fetch_webpage, permission="guest", effect="read", timeout_seconds=settings.fetch_seconds + _MARGIN_SECONDS
    )
    module.add(tools.search_docs, permission="guest", effect="read")
    return module
