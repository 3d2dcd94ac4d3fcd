"""Counts what a detector finds of labelled texts: found is what has the same kind and the same start and end, and nothing else."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from support.personal_data.corpus import LabelledText, Place


@dataclass
class Score:
    """How many were found rightly, wrongly, and not at all, of one kind or of all."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    @property
    def recall(self) -> float:
        """Of what there is, how much was found."""
        return self.right / max(self.right + self.missed, 1)

    @property
    def precision(self) -> float:
        """Of what was found, how much there is."""
        return self.right / max(self.right + self.wrong, 1)


@dataclass
class Scores:
    """The scores of all kinds, and the first texts in which something is wrong: for who reads a failure."""

    kinds: dict[str, Score] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def overall(self) -> Score:
        """All kinds together."""
        return Score(
            *(sum(getattr(score, name) for score in self.kinds.values()) for name in ("right", "wrong", "missed"))
        )

    def table(self) -> str:
        """A line for each kind, and one for all."""
        rows = [*sorted(self.kinds.items()), ("all", self.overall)]
        return "\n".join(
            [
                f"{'kind':12} {'there':>6} {'recall':>8} {'precision':>10} {'missed':>7} {'wrong':>6}",
                *(
                    f"{kind:12} {score.right + score.missed:6} {score.recall:8.4f} {score.precision:10.4f} "
                    f"{score.missed:7} {score.wrong:6}"
                    for kind, score in rows
                ),
            ]
        )


def scores_of(texts: Sequence[LabelledText], find: Callable[[str], Iterable[tuple[str, int, int]]]) -> Scores:
    """What `find` does on these texts."""
    scores = Scores()
    for each in texts:
        there = Counter(each.places)
        found = Counter(Place(*place) for place in find(each.text))
        for place, name in (
            *((place, "right") for place in there & found),
            *((place, "wrong") for place in found - there),
            *((place, "missed") for place in there - found),
        ):
            score = scores.kinds.setdefault(place.kind, Score())
            setattr(score, name, getattr(score, name) + 1)
            if name != "right":
                scores.faults.append(
                    f"{name:6} {place.kind:12} {each.text[place.start : place.end]!r} in {each.text!r} ({each.language})"
                )
    return scores
