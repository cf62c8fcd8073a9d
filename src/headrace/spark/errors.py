"""What can go wrong between Spark and the hub, each with what to do about it."""

from __future__ import annotations

from headrace.errors import HeadraceError


class NoJava(HeadraceError):
    """No usable Java runtime was found."""

    code = "no-java"


class BadOption(HeadraceError):
    """An option of the data source or of a pipeline cannot be meant."""

    code = "bad-option"

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"option {option!r} is {value!r}; expected {expected}")


class DataLoss(HeadraceError):
    """Records that the query still had to read are gone. `first` and `last` are inclusive."""

    code = "data-loss"

    def __init__(self, stream: str, partition: int, first: int, last: int, why: str) -> None:
        self.stream = stream
        self.partition = partition
        self.first = first
        self.last = last
        super().__init__(
            f"stream {stream!r} partition {partition}: indexes {first} to {last} were asked for and are gone: {why}. "
            "Set failOnDataLoss=false to continue without them"
        )


class PipelineError(HeadraceError):
    """A pipeline's definition or its run failed."""

    code = "pipeline"
