"""Lists what is generated from the code: pages of docs/, tables that pages show, and the schema of the chart's values."""

from pathlib import Path

from docsite.chart_schema import chart_schema
from docsite.cli_page import cli_page
from docsite.error_codes import error_codes_page
from docsite.field_tables import field_tables
from docsite.gateway_routes import gateway_routes
from docsite.map import ROOMS, architecture_page, room_page
from docsite.metrics_page import metrics_page
from docsite.module_contract import module_contract, module_contract_page
from docsite.python_reference import python_page
from docsite.settings_page import settings_page
from docsite.tutorial import tutorial_page

DOCS = Path(__file__).parents[1] / "docs"
CHART_SCHEMA = "../ops/chart/values.schema.json"
PIECES = "../docsite/pieces"
MAP = "concepts/architecture.md"


def generated() -> dict[str, str]:
    """Return each generated text by its path from docs/."""
    return {
        CHART_SCHEMA: chart_schema(),
        f"{PIECES}/gateway_routes.md": gateway_routes(),
        **{f"{PIECES}/{name}": text for name, text in field_tables().items()},
        MAP: architecture_page((DOCS / MAP).read_text()),
        **{f"../{room}/README.md": room_page(room, (DOCS.parent / room / "README.md").read_text()) for room in ROOMS},
        "operations/settings.md": settings_page(),
        "reference/cli.md": cli_page(),
        "reference/error-codes.md": error_codes_page(),
        "reference/metrics.md": metrics_page(),
        "reference/module-contract.json": module_contract(),
        "reference/module-contract.md": module_contract_page(),
        "reference/python.md": python_page(),
        "tutorial.md": tutorial_page(),
    }
