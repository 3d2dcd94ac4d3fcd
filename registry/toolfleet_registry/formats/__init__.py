"""Translates tools and their calls for model providers: five formats from one definition.

What comes in is a tool's own schema. It is made to refer only to `$defs` (`references.py`), to be one object at its top and to
use only what the provider takes (`relaxing.py`, `gemini.py`), and strict where that is wanted and possible (`strictness.py`). No
provider's package is needed.
"""

from toolfleet_registry.formats.calls import call_from_openai, to_call
from toolfleet_registry.formats.dialects import Format
from toolfleet_registry.formats.offers import convert, tools_to_openai_format
from toolfleet_registry.formats.on_demand import SearchRequest, ToolsOnDemand
from toolfleet_registry.formats.relaxing import Converted, Note
from toolfleet_registry.formats.results import as_spoken, from_result

__all__ = [
    "Converted",
    "Format",
    "Note",
    "SearchRequest",
    "ToolsOnDemand",
    "as_spoken",
    "call_from_openai",
    "convert",
    "from_result",
    "to_call",
    "tools_to_openai_format",
]
