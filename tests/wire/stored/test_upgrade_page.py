"""The page about upgrades: what it says of each kind of text is what the fixtures' tests show."""

from pathlib import Path

from wire.stored.samples.all_forms import FORMS

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "upgrade.md"
ROWS = {
    "Calls, jobs, approvals, results, dead letters, wake-ups": (
        "refused",
        {
            "job",
            "job position",
            "job end",
            "call after a job",
            "asked approval",
            "approval summary",
            "approval vote",
            "approval journal",
            "approved call",
            "call",
            "result",
            "artifact",
            "program position",
            "program state",
            "program end",
            "dead letter",
            "begun call",
            "wake-up",
        },
    ),
    "The directory of modules, announcements of hosts, specifications of tools, answers to the doctor's canaries, notes of load, states of queues": (
        "ignored",
        {"module entry", "announcement", "tool specification", "canary answer", "queue state"},
    ),
    "API keys, agents' profiles": ("refused", {"api key", "agent profile", "agent history"}),
    "A host's answer to a request to reload": ("refused", {"reload answer"}),
}
SAYS = {"ignored": ("without the fields that it does not know",), "refused": ("uses nothing new", "is left out")}


def test_each_form_stands_in_a_row_that_says_what_its_tests_show() -> None:
    """A form whose unknown fields are ignored is read without them; of the others what uses nothing new is read."""
    lines = PAGE.read_text().splitlines()
    for name, (unknown, forms) in ROWS.items():
        (row,) = (line for line in lines if line.startswith(f"| {name} |"))
        assert any(words in row for words in SAYS[unknown]), row
        assert {form.unknown for form in FORMS if form.name in forms} == {unknown}


def test_no_form_is_left_out() -> None:
    """Each is in one row."""
    assert sorted(name for _, forms in ROWS.values() for name in forms) == sorted(form.name for form in FORMS)
