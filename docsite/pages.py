"""Lists the pages of docs/ that are generated from the code."""

from pathlib import Path

from docsite.cli_page import cli_page
from docsite.error_codes import error_codes_page
from docsite.map import architecture_page
from docsite.metrics_page import metrics_page
from docsite.module_contract import module_contract, module_contract_page
from docsite.python_reference import python_page
from docsite.settings_page import settings_page
from docsite.tutorial import tutorial_pages

DOCS = Path(__file__).parents[1] / "docs"
MAP = "concepts/architecture.md"


def generated() -> dict[str, str]:
    """Return each generated page by its path in docs/."""
    return {
        MAP: architecture_page(),
        "operations/settings.md": settings_page(),
        "reference/cli.md": cli_page(),
        "reference/error-codes.md": error_codes_page((DOCS / "troubleshooting.md").read_text()),
        "reference/metrics.md": metrics_page(),
        "reference/module-contract.json": module_contract(),
        "reference/module-contract.md": module_contract_page(),
        "reference/python.md": python_page(),
        **tutorial_pages(),
    }
