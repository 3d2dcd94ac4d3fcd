"""Tools as model providers take them, and their answers back as calls."""

from toolfleet_registry.formats import call_from_openai, tools_to_openai_format

__all__ = ["call_from_openai", "tools_to_openai_format"]
