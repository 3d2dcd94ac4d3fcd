"""What `research` offers."""

from modules.research.settings import ResearchSettings
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition, ToolParameter

_MARGIN_SECONDS = 5  # to report that a page took too long

SEARCH_DOCS = ToolDefinition(
    name="research.search_docs",
    description="Search this project's documentation for words. Returns the best passages, each with its file, heading "
    "and line.",
    parameters=[
        ToolParameter(name="query", type="string", description="The words to look for, such as 'retry after timeout'."),
        ToolParameter(
            name="max_results",
            type="integer",
            description="How many passages to return; 5 by default, 20 at most.",
            required=False,
        ),
    ],
    required_permission="guest",
    effect="read",
)


def manifest_for(settings: ResearchSettings) -> ModuleManifest:
    """The time limit of `fetch_webpage` follows the setting."""
    fetch_webpage = ToolDefinition(
        name="research.fetch_webpage",
        description="Fetch a public web page and return its title and readable text.",
        parameters=[
            ToolParameter(name="url", type="string", description="An http or https address."),
            ToolParameter(
                name="max_chars",
                type="integer",
                description="How much text to return; 8000 characters by default, 100000 at most.",
                required=False,
            ),
        ],
        required_permission="guest",
        effect="read",
        timeout_seconds=settings.fetch_seconds + _MARGIN_SECONDS,
    )
    return ModuleManifest(
        module_name="research",
        description="Reads public web pages and searches this project's documentation.",
        tools=[fetch_webpage, SEARCH_DOCS],
    )
