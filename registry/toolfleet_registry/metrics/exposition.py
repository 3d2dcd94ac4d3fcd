"""Writes metrics in the Prometheus format: of one process, and of additional sources."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.metrics.families import FAMILIES, Family
from toolfleet_registry.metrics.recorder import Recorder, Sample

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """The text of one process's metrics. Raises `SettingsError` without `prometheus_client`."""

    def __init__(self, recorder: Recorder) -> None:
        try:
            # Only here: a process without metrics does not load it.
            from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415
        except ImportError as exc:
            raise SettingsError("Metrics need prometheus-client: pip install 'toolfleet[metrics]'.") from exc
        self._recorder = recorder
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def text(self, more: Iterable[Sample] = ()) -> bytes:
        """All of it now, with `more` samples. May be called from any thread."""
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - as above
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415 - as above

        samples = [*more, *(sample for read in tuple(self._recorder.gauges) for sample in read())]
        registry = CollectorRegistry()
        registry.register(_Collected(tuple(_metrics(self._recorder, samples))))
        return generate_latest(registry) + generate_latest(self._process)


class RecordedMetrics:
    """A recorder's metrics as a collector for `prometheus_client`.

    Collecting raises `ImportError` without that package.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> "Iterable[Metric]":
        """All of them now. May be called from any thread."""
        samples = [sample for read in tuple(self._recorder.gauges) for sample in read()]
        return tuple(_metrics(self._recorder, samples))


class _Collected:
    """A collector of fixed metrics for `prometheus_client`."""

    def __init__(self, metrics: "tuple[Metric, ...]") -> None:
        self._metrics = metrics

    def collect(self) -> "Iterable[Metric]":
        return self._metrics


def _metrics(recorder: Recorder, samples: list[Sample]) -> "Iterator[Metric]":
    from prometheus_client import core  # noqa: PLC0415 - as above

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
