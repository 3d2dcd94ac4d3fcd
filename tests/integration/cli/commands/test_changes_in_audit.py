"""What is changed at the command line is in the audit: by this machine's user, or by who is named."""

import getpass
import json

import pytest

from support.command import Run
from support.module_server import serve
from support.owls import make_module
from support.workers.dead_news import maker


def test_each_change_has_its_line(run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done to what, how that has ended, and who: commands that only ask have none."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    maker(redis_url)("job-1", dead=True)
    with serve(make_module()) as module:
        monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": module.url}))
        run("modules", "refresh")
        for words in [
            ("tools", "disable", "owls.echo", "--as", "ada"),
            ("tools", "enable", "owls.echo"),
            ("tools", "rollback", "owls.echo", "9", "--as", "ada"),
            ("tools", "list", "--closed"),
            ("tools", "adopt-registry"),
            ("dead", "drop", "job-1", "job-2", "--as", "ada"),
            ("wakes", "replay", "job-3"),
            ("jobs", "cancel", "job-4", "--as", "ada"),
            ("jobs", "cancel", "--user", "bob", "--as", "ada"),
        ]:
            run(*words)
    said = run("audit", "tail", "--changes", "--json").out
    lines = [json.loads(line) for line in said.splitlines()]

    assert {line["by"] for line in lines} == {"command line"}
    assert [(line["change"], line["tool"], line["user_id"], line["outcome"]) for line in lines] == [
        ("tool_disabled", "owls.echo", "ada", "success"),
        ("tool_enabled", "owls.echo", getpass.getuser(), "success"),
        ("tool_rolled_back", "owls.echo", "ada", "refused"),
        ("registry_adopted", "-", getpass.getuser(), "success"),
        ("dead_letter_dropped", "job-1", "ada", "success"),
        ("dead_letter_dropped", "job-2", "ada", "refused"),
        ("job_cancelled", "job-4", "ada", "refused"),
        ("jobs_cancelled", "-", "ada", "success"),
    ]
