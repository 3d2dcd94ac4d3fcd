"""What the guides say of profiles can be written so."""

import re
import tomllib
from pathlib import Path

import pytest

from toolfleet_registry.settings import load_settings

GUIDES = Path(__file__).parents[4] / "docs" / "guides"


@pytest.mark.parametrize("guide", ["approvals", "personal-data"])
def test_the_profiles_of_a_guide_are_settings(guide: str) -> None:
    """Each block of TOML is one that a fleet starts with, and knows all of."""
    blocks = re.findall(r"```toml\n(.*?)```", (GUIDES / f"{guide}.md").read_text(), re.DOTALL)

    assert blocks
    for block in blocks:
        tables = tomllib.loads(block)
        settings = load_settings(**tables)
        assert [name for name in tables if not getattr(settings, name)] == []
