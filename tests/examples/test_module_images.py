"""The images of modules that have one of their own, as far as they can be judged without a container engine."""

import re
from pathlib import Path

import pytest

from support.example_modules import EXAMPLES

CLONE = EXAMPLES.parent
IMAGES = sorted((EXAMPLES / "modules").glob("*/Dockerfile"))


@pytest.mark.parametrize("image", IMAGES, ids=[path.parent.name for path in IMAGES])
def test_an_image_is_built_from_what_there_is(image: Path) -> None:
    """Everything that it copies exists, it starts its own module, and not as root."""
    text = image.read_text()
    name = image.parent.name
    copied = [source for line in re.findall(r"(?m)^COPY (.+)$", text) for source in line.split()[:-1]]

    assert copied
    assert [source for source in copied if not (CLONE / source).exists()] == []
    assert f'"modules.{name}.main:app"' in text
    assert int(re.findall(r"(?m)^USER (\d+):\d+$", text)[-1]) > 0
    assert (EXAMPLES / "modules" / name / "requirements.txt").is_file()
