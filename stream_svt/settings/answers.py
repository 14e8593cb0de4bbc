"""Answers that a source passes on unchanged: their fields in records, and their declared properties."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from stream_svt.settings import fields
from stream_svt.settings.datasets import OR_PATTERN, has_slots
from stream_svt.settings.document import Found, Strict, consistent, quote
from stream_svt.settings.periods import SLOTS, period_name
from stream_svt.settings.records import KEY, OFFSET, Path, RecordLayout, is_inside, steps


class DatasetOfAnswer(Strict):
    """The dataset of an answer: one for all, or the value of a field."""

    pattern: Annotated[str, Field(strict=True)] = ""
    """The dataset of all answers: a name, or a pattern with {date} or {iso_week} for the period of the tick's end."""
    field: Path | None = None
    """Instead, path of the dataset's name. Answers of datasets that are not declared are dropped."""

    @consistent
    def _problems(self) -> Found:
        if bool(self.pattern) is (self.field is not None):
            yield "field", "or pattern is required, and only one of them: where the name of the dataset is"
        elif self.pattern:
            if not has_slots(self.pattern, 0):
                slots = f"a name, with {' or '.join(SLOTS)} once at most"
                yield "pattern", f"expected {slots}, found {quote(self.pattern)}"
                return
            try:
                fields.dataset_name(period_name(self.pattern, 0))
            except ValueError as error:
                yield "pattern", str(error)


class AnswersSpec(Strict):
    """Answers that exist already, one in each record of the source's topic. key is the record's key in every path."""

    value: Path
    """Path of the true answer, a number. Whatever else stands there counts as the lower bound."""
    id: Path = OFFSET
    r"""Path of the answer's id, a text, integer or boolean, by which an alert names it; or offset, its partition and
    offset (a field of that name is `\offset`). Default offset."""
    series: Path | None = None
    """Path of the series, likewise; a record without the field has no series. Default: none."""
    dataset: Annotated[DatasetOfAnswer, OR_PATTERN]
    """The dataset whose budget the answers spend: its name, or {field: payload.store}. Its unit is declared."""
    sensitivity: fields.PositiveExact
    """Largest change of one answer when one privacy unit changes, in real units. Too small a value voids the
    guarantee."""
    monotonic: fields.Flag = False
    """Whether one privacy unit moves all answers in the same direction, as for counts. A wrong declaration voids the
    guarantee. Default false."""
    granularity: fields.PositiveExact = Fraction(1)
    """Step of the integer grid, as of a monitor. Default 1."""
    bounds: fields.Bounds
    """[low, high] in real units. Values are clamped to them."""

    @property
    def paths(self) -> dict[str, str]:
        """The paths of fields, by their keys in the configuration."""
        found = {
            "value": self.value,
            "id": self.id,
            "series": self.series,
            "dataset.field": self.dataset.field,
        }
        return {
            name: path for name, path in found.items() if path is not None and (name, path) != ("id", OFFSET)
        }

    def layout(self, format_: Literal["json", "avro"]) -> RecordLayout:
        """Return the layout of the records, with the dataset in the place of a set, and without what the key is."""
        given = {name: path for name, path in self.paths.items() if path != KEY}
        given = {name.replace("dataset.field", "set"): path for name, path in given.items()}
        return RecordLayout.model_validate({"format": format_, **given})

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        low, high = self.bounds
        if low >= high:
            yield "bounds", f"low must be below high, found [{quote(low)}, {quote(high)}]"
        if self.value == KEY:
            yield "value", r"is the record's key, which is public: name a field, or \key for one of that name"
        for (one, first), (other, second) in combinations(self.paths.items(), 2):
            if one == "value" and steps(first) == steps(second):
                yield other, "is the path of value, which is private: everything else is public"
            elif KEY not in (first, second) and is_inside(steps(first), steps(second)):
                yield other, f"one of the paths of {one} and {other} is inside the other"
