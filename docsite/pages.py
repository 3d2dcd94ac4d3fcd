"""Lists the pages of docs/ that are generated from the code."""

from pathlib import Path

from docsite.python_reference import python_page

DOCS = Path(__file__).parents[1] / "docs"


def generated() -> dict[str, str]:
    """Return each generated page by its path in docs/."""
    return {"reference/python.md": python_page()}
