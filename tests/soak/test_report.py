"""A soak tells a process that goes on growing from one that has filled its caches."""

import pytest

from soak.report import grown, grown_keys
from soak.run import Sample


def samples(megabytes: list[float], descriptors: list[int]) -> dict[str, list[Sample]]:
    pairs = zip(megabytes, descriptors, strict=True)
    return {"worker-0": [Sample(n, int(size * 2**20), count, 5) for n, (size, count) in enumerate(pairs)]}


@pytest.mark.parametrize(
    ("megabytes", "descriptors", "said"),
    [
        ([70, 90, 92, 93, 93, 93, 93, 93], [30] * 8, []),
        (
            [70, 80, 90, 100, 110, 120, 130, 140],
            [30] * 8,
            ["worker-0 goes on growing: 115.0 MB in the third quarter, 135.0 MB in the last"],
        ),
        (
            [90] * 8,
            [30, 30, 31, 31, 40, 40, 50, 50],
            ["worker-0 keeps 10 descriptors more in the last quarter than in the third"],
        ),
    ],
)
def test_who_grows_in_the_last_half_is_named(megabytes: list[float], descriptors: list[int], said: list[str]) -> None:
    """Growth at the start is none, and a few per cent are not either."""
    assert grown(samples(megabytes, descriptors)) == said


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([100, 2000, 4000, 4000, 4000, 4000, 4100, 4100], []),
        (
            [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000],
            ["Redis goes on growing: 5500 keys in the third quarter, 7500 in the last"],
        ),
    ],
)
def test_keys_that_go_on_growing_are_told(keys: list[int], said: list[str]) -> None:
    """Those that expire are as many in the last quarter as in the third."""
    assert grown_keys([(n, 0, count) for n, count in enumerate(keys)]) == said
