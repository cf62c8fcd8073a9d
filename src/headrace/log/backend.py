"""Which log there is: files in a directory, or a cell of Kafka."""

from __future__ import annotations

from headrace.config.sections import Log as LogSettings
from headrace.log.clock import Clock
from headrace.log.directory import open_directory
from headrace.log.disk import Disk
from headrace.log.log import Log


def open_log(disk: Disk, clock: Clock, settings: LogSettings) -> Log:
    """The log that the settings name, recovered, or a new one: blocks. It owns the disk."""
    if settings.backend == "embedded":
        return open_directory(disk, clock, settings)
    from headrace.log.kafka.cell import open_cell

    return open_cell(disk, clock, settings)
