"""How `toolfleet autoscale` refuses to start."""

import pytest

from support.command import Run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fast", "--min", "5", "--max", "2"), "it is more than --max 2"),
        (("all",), "'all' is not one of"),
        (("fast", "--max", "0"), "greater than or equal to 1"),
        (("fast",), "There is no Redis to work with: set TOOLFLEET_REDIS_URL"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(run: Run, words: tuple[str, ...], said: str) -> None:
    """Before it has started anybody."""
    ended = run("autoscale", *words)

    assert ended.code == 2
    assert said in " ".join(ended.err.replace("│", " ").split())
