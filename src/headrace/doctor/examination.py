"""All checks, in the order in which a start would meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.config import Config
from headrace.config.profiles import Target, resolve
from headrace.doctor import cell, data, kafka, machine, network, online, software
from headrace.doctor.finding import Finding, Progress


def examine(
    config: Config,
    *,
    ports: bool = True,
    hub: Target | None = None,
    own: Callable[[str], Target] = resolve,
    progress: Progress = lambda text: None,
) -> Iterator[Finding]:
    """Everything. `ports=False` leaves the ports alone. A hub that has the data directory open, which
    `own` tells how to reach at its address, or the one that is named, is asked how it is."""
    place = Path(config.log.data)
    progress(f"data directory {place}")
    yield from data.check_place(place)
    if config.log.backend == "kafka":
        progress("Kafka")
        yield from kafka.check_kafka(config)
        progress("the log on Kafka")
        yield from cell.check_cell(config, progress)
    else:
        yield from data.check_data(place, progress)
    progress("disk speed")
    yield from machine.check_room(place, config)
    yield from machine.check_speed(place)
    yield from machine.check_clock()
    yield from machine.check_limits(config)
    owner = data.process_using(place)
    if ports:
        yield from network.check_ports(config, owner)
    yield from network.check_security(config)
    yield from software.check_packages(config)
    progress("Java")
    yield from software.check_java(config)
    yield from software.check_engine()
    address = config.listen.addresses()["flight"]
    if hub is not None or (owner is not None and address != "off"):
        progress("the running hub")
        yield from online.check_hub(hub or own(address), config if hub is None else None)
