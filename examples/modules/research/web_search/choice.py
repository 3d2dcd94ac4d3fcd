"""Which service searches the web, by the settings. Another kind of service is a class beside `SearXNG`, and a line here."""

from modules.research.settings import ResearchSettings
from modules.research.web_search.json_service import JsonService
from modules.research.web_search.provider import SearchProvider
from modules.research.web_search.searxng import SearXNG


def provider_of(settings: ResearchSettings) -> SearchProvider | None:
    """None if the settings name no service."""
    if (address := settings.search_address) is None:
        return None
    key = settings.search_key
    headers = {settings.search_key_header: key.get_secret_value()} if key else {}
    return SearXNG(JsonService(address, settings.search_seconds, headers))
