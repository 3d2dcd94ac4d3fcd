"""The session that `docs/guides/operating-tools.md` shows is what the commands print."""

from pathlib import Path

import pytest

from support.tools_session import PAGE, plain, session


@pytest.mark.slow
def test_the_recorded_session_is_a_real_one(tmp_path: Path) -> None:
    """Run anew against a fleet and a module that changes, it says the same, but for times and addresses."""
    assert plain(session(tmp_path)).rstrip() == plain(PAGE.read_text()).rstrip()
