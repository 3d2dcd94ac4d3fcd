"""Counts and times what a process does, in plain dictionaries, and writes that in the Prometheus format.

One thread writes, the event loop's; another one may read at any time. Where metrics are off, the recorder is `None`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from toolfleet_registry import metric_families
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.metric_families import FAMILIES, Family
from toolfleet_registry.system.process import this_process

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Labels: TypeAlias = tuple[str, ...]

OTHER: Final = "other"
"""The label for names beyond the bound, and for names of tools that do not exist."""

_MOST_SERIES = 10_000  # of one family: with any labels, memory stays bounded

_UNKNOWN_NAMES = frozenset({"invalid_tool_name", "unknown_module", "unknown_tool"})

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MOST_NAMES = 200  # tools with series of their own, a few each; those that come later are `other`


@dataclass(frozen=True, slots=True)
class Sample:
    """A family's value for some labels, in the family's order."""

    family: Family
    value: float
    labels: Labels = ()


class Timings:
    """A histogram of one family and labels: how many were at most each bound, and beyond all; and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class Recorder:
    """The counts of one process since its start.

    `most_names`: the number of tools, and of modules, that have series of their own.
    """

    def __init__(self, *, most_names: int) -> None:
        self.gauges: list[Callable[[], Iterable[Sample]]] = []
        """What says, whenever it is asked, how things are now. May be called from any thread."""
        self._most_names = most_names
        self._counts = dict[Family, dict[Labels, float]]()
        self._timings = dict[Family, dict[Labels, Timings]]()
        self._tools = dict[str, tuple[str, str]]()
        self._modules = set[str]()

    def count(self, family: Family, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter."""
        counts = self._counts.get(family)
        if counts is None:
            counts = self._counts[family] = {}
        if labels not in counts and len(counts) >= _MOST_SERIES:
            labels = (OTHER,) * len(labels)
        counts[labels] = counts.get(labels, 0) + by

    def observe(self, family: Family, labels: Labels, seconds: float) -> None:
        """Add to a histogram."""
        timings = self._timings.get(family)
        if timings is None:
            timings = self._timings[family] = {}
        one = timings.get(labels)
        if one is None:
            if len(timings) >= _MOST_SERIES:
                labels = (OTHER,) * len(labels)
            one = timings.setdefault(labels, Timings(family.buckets))
        one.add(seconds)

    def names_of(self, tool: str) -> tuple[str, str]:
        """Module and tool as labels: each of its own, up to the bound."""
        known = self._tools.get(tool)
        if known is not None:
            return known
        module = tool.partition(".")[0]
        if len(self._tools) < self._most_names:
            self._modules.add(module)
            names = self._tools[tool] = (module, tool)
            return names
        return (module if module in self._modules else OTHER, OTHER)

    def counted(self) -> Mapping[Family, Mapping[Labels, float]]:
        """Return a copy of all counters."""
        return {family: dict(counts) for family, counts in tuple(self._counts.items())}

    def timed(self) -> Mapping[Family, Mapping[Labels, tuple[tuple[int, ...], float]]]:
        """Return a copy of all histograms: the count of each bucket, and the sum."""
        return {
            family: {labels: (tuple(one.counts), one.total) for labels, one in tuple(timings.items())}
            for family, timings in tuple(self._timings.items())
        }


class CallRecorder:
    """Counts how calls end, in a `recorder`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._ends = dict[tuple[str, str, str, str], Labels]()

    def ended(self, tool: str, outcome: str, error_code: str, effect_state: str) -> tuple[str, ...]:
        """Count a call's end. Returns its module, as a label."""
        key = (tool, outcome, error_code, effect_state)
        labels = self._ends.get(key)
        if labels is None:
            is_unknown = error_code in _UNKNOWN_NAMES  # a name that a model has made up
            module, name = (OTHER, OTHER) if is_unknown else self.recorder.names_of(tool)
            labels = (module, name, outcome, error_code, effect_state)
            if name != OTHER:
                self._ends[key] = labels
        self.recorder.count(metric_families.CALLS, labels)
        return labels[:1]

    def ran(self, module: tuple[str, ...], *, run_seconds: float, total_seconds: float) -> None:
        """Time a call that a worker has ended."""
        self.recorder.observe(metric_families.CALL_RUN, module, run_seconds)
        self.recorder.observe(metric_families.CALL_TOTAL, module, total_seconds)

    def begun(self, tool: str, seconds: float) -> None:
        """Time how long a call has waited that a worker begins for the first time."""
        self.recorder.observe(metric_families.CALL_QUEUED, self.recorder.names_of(tool)[:1], max(seconds, 0.0))

    def count_call(self, family: Family, tool: str) -> None:
        """Count something that happened to a call, by its module."""
        self.recorder.count(family, self.recorder.names_of(tool)[:1])


class Exposition:
    """The text of one process's metrics. Raises `SettingsError` without `prometheus_client`."""

    def __init__(self, recorder: Recorder) -> None:
        try:
            # Only here: a process without metrics does not load it.
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError as exc:
            raise SettingsError("Metrics need prometheus-client: pip install 'toolfleet[metrics]'.") from exc
        self._recorder = recorder
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def text(self, more: Iterable[Sample] = ()) -> bytes:
        """Return all metrics as they are now, with `more` samples. May be called from any thread."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import generate_latest

        registry = CollectorRegistry()
        registry.register(RecordedMetrics(self._recorder, more))
        return generate_latest(registry) + generate_latest(self._process)


class RecordedMetrics:
    """A recorder's metrics, with `more` samples, as a collector for `prometheus_client`.

    Collecting raises `ImportError` without that package.
    """

    def __init__(self, recorder: Recorder, more: Iterable[Sample] = ()) -> None:
        self._recorder, self._more = recorder, more

    def collect(self) -> "Iterable[Metric]":
        """Return all metrics as they are now. May be called from any thread."""
        samples = [*self._more, *(sample for read in tuple(self._recorder.gauges) for sample in read())]
        return tuple(_metrics(self._recorder, samples))


def _metrics(recorder: Recorder, samples: list[Sample]) -> "Iterator[Metric]":
    from prometheus_client import core

    by_family = dict[Family, list[Sample]]()
    for sample in samples:
        by_family.setdefault(sample.family, []).append(sample)
    counted, timed = recorder.counted(), recorder.timed()
    for family in FAMILIES:
        if family.kind == "histogram":
            histogram = core.HistogramMetricFamily(family.name, family.help, labels=family.labels)
            for labels, (counts, total) in timed.get(family, {}).items():
                histogram.add_metric(labels, _cumulated(family, counts), total)
            if histogram.samples:
                yield histogram
            continue
        kind = core.CounterMetricFamily if family.kind == "counter" else core.GaugeMetricFamily
        metric = kind(family.name, family.help, labels=family.labels)
        for labels, value in counted.get(family, {}).items():
            metric.add_metric(labels, value)
        for sample in by_family.get(family, ()):
            metric.add_metric(sample.labels, sample.value)
        if metric.samples:
            yield metric


def _cumulated(family: Family, counts: tuple[int, ...]) -> list[tuple[str, float]]:
    found, sum_so_far = list[tuple[str, float]](), 0
    for bound, count in zip((*map(str, family.buckets), "+Inf"), counts, strict=True):
        sum_so_far += count
        found.append((bound, sum_so_far))
    return found


class _Held:
    started = 0


def calls() -> CallRecorder | None:
    """Return where calls are counted; `None` while they are not."""
    recorder: CallRecorder | None = this_process().calls
    return recorder


def start(*, most_names: int = _MOST_NAMES) -> Recorder:
    """Start counting, until `stop`; if counting is on already, return the existing recorder."""
    process = this_process()
    process.part(_Held).started += 1
    if process.calls is None:
        process.calls = CallRecorder(Recorder(most_names=most_names))
    recorder: Recorder = process.calls.recorder
    return recorder


def stop() -> None:
    """Stop counting and forget the counts, unless another part of the process still counts."""
    process = this_process()
    held = process.part(_Held)
    held.started -= 1
    if held.started <= 0:
        process.calls, held.started = None, 0
