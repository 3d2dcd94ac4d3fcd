"""What a process counts, how it is bounded, and how Prometheus reads it."""

import re
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.metrics.scraping import series_in, sum_of
from toolfleet_registry import metric_families, metrics
from toolfleet_registry.metric_families import FAMILIES, PREFIX
from toolfleet_registry.metrics import CallRecorder, Exposition, Recorder, Sample
from toolfleet_registry.system.process import this_process


def test_a_call_is_counted_by_its_module_its_tool_and_how_it_ended() -> None:
    """And timed by its module alone, where a worker has run it."""
    recorder = Recorder(most_names=10)
    calls = CallRecorder(recorder)
    for seconds in (0.005, 3.0):
        calls.begun("owls.echo", seconds)
        calls.ran(calls.ended("owls.echo", "success", "", "done"), run_seconds=seconds, total_seconds=2 * seconds)
    calls.ended("owls.echo", "failed", "timeout", "unknown")

    found = series_in(Exposition(recorder).text().decode())

    assert sum_of(found, "toolfleet_calls_total", tool="owls.echo", outcome="success", effect_state="done") == 2
    assert sum_of(found, "toolfleet_calls_total", module="owls", error_code="timeout") == 1
    assert sum_of(found, "toolfleet_call_queued_seconds_bucket", le="0.005") == 1
    assert sum_of(found, "toolfleet_call_queued_seconds_count", module="owls") == 2
    assert sum_of(found, "toolfleet_call_total_seconds_sum", module="owls") == 6.01


def test_tools_beyond_the_bound_are_others() -> None:
    """Their module keeps its name while it has a tool of its own; a name that a model made up has no series at all."""
    calls = CallRecorder(Recorder(most_names=2))
    for tool in ("owls.one", "owls.two", "owls.three", "bats.one"):
        calls.ended(tool, "success", "", "done")
    calls.ended("made.up", "refused", "unknown_module", "none")

    found = series_in(Exposition(calls.recorder).text().decode())

    assert sum_of(found, "toolfleet_calls_total", module="owls") == 3
    assert sum_of(found, "toolfleet_calls_total", module="owls", tool="other") == 1
    assert sum_of(found, "toolfleet_calls_total", module="other", tool="other") == 2
    assert "made" not in str(found)


def test_no_label_makes_series_without_end() -> None:
    """Whatever it is made of: what comes after ten thousand is counted together."""
    recorder = Recorder(most_names=10)
    for number in range(10_100):
        recorder.count(metric_families.ADMISSION_REFUSALS, (str(number),))
        recorder.observe(metric_families.CALL_RUN, (str(number),), 1)

    assert len(recorder.counted()[metric_families.ADMISSION_REFUSALS]) == 10_001
    assert recorder.counted()[metric_families.ADMISSION_REFUSALS][("other",)] == 100
    assert len(recorder.timed()[metric_families.CALL_RUN]) == 10_001


def test_prometheus_reads_each_family_by_its_name_kind_and_help() -> None:
    """Counters end with `_total`, times are in seconds, and no label is an id or a person."""
    recorder = Recorder(most_names=10)
    for family in FAMILIES:
        labels = tuple(f"a {label}" for label in family.labels)
        if family.kind == "histogram":
            recorder.observe(family, labels, 0.1)
        else:
            recorder.gauges.append(lambda family=family, labels=labels: [Sample(family, 1, labels)])  # type: ignore[misc] # bound now
    read = {each.name: each for each in text_string_to_metric_families(Exposition(recorder).text().decode())}

    for family in FAMILIES:
        found = read[family.name.removesuffix("_total")]
        assert (found.type, found.documentation) == (family.kind, family.help), family.name
        assert family.name.startswith(PREFIX)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.kind != "histogram" or family.name.endswith("_seconds")
        assert not {label for label in family.labels if re.search(r"user|call|conversation|host|worker", label)}


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Whatever another test of this process has left counting is not counted here."""
    process, held = this_process(), this_process().part(metrics._Held)
    calls, started = process.calls, held.started
    process.calls, held.started = None, 0
    yield
    process.calls, held.started = calls, started


def test_a_process_without_metrics_has_no_recorder() -> None:
    """What is off is one comparison with `None`; begun twice, it is the same recorder, until both have ended."""
    assert is_off()
    one = metrics.start(most_names=5)
    try:
        assert metrics.start(most_names=5) is one
        metrics.stop()
        assert not is_off()
    finally:
        metrics.stop()
    assert is_off()


def is_off() -> bool:
    return metrics.calls() is None
