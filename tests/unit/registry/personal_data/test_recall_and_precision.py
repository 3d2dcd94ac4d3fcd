"""Detectors against the generated set: what is found of 10,000 texts in eight languages, amid what looks like personal data."""

import pytest

from support.personal_data.corpus import WHOLE, labelled_texts
from support.personal_data.scores import Scores, scores_of
from support.personal_data.sentences import LANGUAGES
from toolfleet_registry.personal_data.found import KINDS
from toolfleet_registry.personal_data.personal_data import PersonalData

SMALL = 1_500


@pytest.mark.parametrize("count", [SMALL, pytest.param(WHOLE, marks=pytest.mark.slow)])
def test_nearly_all_is_found_and_nearly_nothing_else(count: int) -> None:
    """Of all places at least 98 of 100 are found to the character, and at most five of 100 findings are none."""
    scores = _scores(count)

    print(scores.table())  # noqa: T201 - `pytest -s` shows it
    assert scores.overall.recall >= 0.98, "\n".join([scores.table(), *scores.faults[:50]])
    assert scores.overall.precision >= 0.95, "\n".join([scores.table(), *scores.faults[:50]])
    assert {kind: score.recall for kind, score in scores.kinds.items() if score.recall < 0.95} == {}
    assert set(scores.kinds) == set(KINDS)


def test_the_set_is_the_same_each_time_and_has_what_it_says() -> None:
    """A seed stands for its texts; eight languages and all look-alikes are in them, and each place holds its value."""
    texts = labelled_texts(SMALL, seed=1)

    assert texts == labelled_texts(SMALL, seed=1)
    assert texts != labelled_texts(SMALL, seed=2)
    assert {text.language for text in texts} == set(LANGUAGES)
    assert len({name for text in texts for name in text.look_alikes}) == 10
    assert sum(not text.places for text in texts) > SMALL / 4
    assert all(0 <= place.start < place.end <= len(text.text) for text in texts for place in text.places)


def _scores(count: int) -> Scores:
    data = PersonalData()
    return scores_of(
        labelled_texts(count), lambda text: [(each.kind, each.start, each.end) for each in data.find(text)]
    )
