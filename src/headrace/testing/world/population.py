"""Who lives in a world: each seed leaves some out."""

from __future__ import annotations

from headrace.testing.world.actors.actor import Actor
from headrace.testing.world.actors.browser import Browser
from headrace.testing.world.actors.caches import Bank, IgniteCounter, IgniteWriter, Librarian, Mapper, TableWriter
from headrace.testing.world.actors.connectors import Rewinder, Sender
from headrace.testing.world.actors.consumers import (
    CursorReader,
    FutoinPoller,
    FutoinReceiver,
    OckamConsumer,
    Pipeline,
    Reader,
)
from headrace.testing.world.actors.fabric import company
from headrace.testing.world.actors.futoin import FutoinPoster, HttpPoller, LiveReceiver, Replaced
from headrace.testing.world.actors.immortals import ClerkActor, Customer, ImmortalActor, StandIn
from headrace.testing.world.actors.keeper import Keeper
from headrace.testing.world.actors.people import Gatekeeper, Guest, Operator, Vandal
from headrace.testing.world.actors.prober import Prober
from headrace.testing.world.actors.producers import (
    FutoinProducer,
    OckamProducer,
    Producer,
    SdkProducer,
    WallarooProducer,
)
from headrace.testing.world.actors.shop import Shop
from headrace.testing.world.actors.spark import Checkpoint, SparkDriver
from headrace.testing.world.actors.tills import tills
from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess
from headrace.testing.world.world import World

PRODUCERS: tuple[type[Producer], ...] = (
    *(WallarooProducer, OckamProducer, FutoinProducer, SdkProducer),
    *(FutoinPoster, Shop),
)
READERS: tuple[type[Reader], ...] = (
    *(OckamConsumer, FutoinPoller, FutoinReceiver, CursorReader),
    *(HttpPoller, LiveReceiver, Replaced),
)
IN_PARTITIONS: tuple[type[Producer], ...] = (OckamProducer, SdkProducer)
IN_PIPELINES: tuple[type[Producer], ...] = (OckamProducer, FutoinProducer, SdkProducer, FutoinPoster)


def population(world: World, hub: HubProcess, book: Book) -> list[Actor]:
    chance = world.random
    streams = ["orders", "clicks"][: chance.randint(1, 2)]
    count, pace_s = chance.choice([(10, 0.5), (15, 2.0), (30, 0.1), (30, 1.0), (60, 0.1)])
    producers = [
        kind(number, hub, book, chance.choice(streams), count, pace_s)
        for kind in PRODUCERS
        for number in range(chance.choice([0, 0, 0, 1, 2]))
    ]
    actors: list[Actor] = [*producers]
    connectors = [producer for producer in producers if isinstance(producer, WallarooProducer)]
    if connectors and chance.random() < 0.3:
        actors.append(Rewinder(0, hub, book, connectors))
    if chance.random() < 0.2:
        actors.append(Sender(0, hub, book, count, pace_s))
    if chance.random() < 0.2:
        actors += _in_partitions(hub, book, count, pace_s)
    if chance.random() < 0.2:
        actors += _in_a_pipeline(hub, book, count // 2, pace_s)
    actors += _at_tables(hub, book, count)
    if chance.random() < 0.2:
        actors += company(hub, book, count)
    actors += [reader(0, hub, book, chance.choice(streams)) for reader in READERS if chance.random() < 0.25]
    if chance.random() < 0.2:
        actors.append(Vandal(0, hub, book))
    if chance.random() < 0.2:
        actors.append(Browser(0, hub, book))
    operators = [Operator(0, hub, book, streams)] if chance.random() < 0.5 else []
    if chance.random() < 0.3 and not any(operator.trims for operator in operators):  # no query survives a trim
        checkpoint, stream = Checkpoint(), chance.choice(streams)
        drivers = range(chance.randint(1, 2))
        actors += [SparkDriver(number, hub, book, stream, producers, checkpoint) for number in drivers]
    actors += operators
    if chance.random() < 0.2:
        actors.append(Prober(0, hub, book, streams))
    if chance.random() < 0.2:
        gatekeeper = Gatekeeper(0, hub, book)
        actors += [gatekeeper, Guest(0, hub, book, gatekeeper)]
    actors += _immortals(hub, book)
    return actors


def _in_partitions(hub: HubProcess, book: Book, count: int, pace_s: float) -> list[Actor]:
    """A stream with several partitions, each with its writers and readers."""
    chance = hub.world.random
    places = [f"parts;partition={number}" for number in range(chance.randint(1, 3))]
    producers = [
        chance.choice(IN_PARTITIONS)(number + 10, hub, book, place, count, pace_s)
        for number, place in enumerate(places)
    ]
    readers = [
        chance.choice((OckamConsumer, CursorReader))(number + 10, hub, book, chance.choice(places))
        for number in range(2)
    ]
    return [*producers, *readers]


def _in_a_pipeline(hub: HubProcess, book: Book, count: int, pace_s: float) -> list[Actor]:
    """A stream whose records are acknowledged when they are processed."""
    chance = hub.world.random
    pipeline = Pipeline(0, hub, book, "jobs")
    kinds = chance.sample(IN_PIPELINES, chance.randint(1, 2))
    producers = [kind(number + 20, hub, book, "jobs", count, pace_s) for number, kind in enumerate(kinds)]
    for producer in producers:
        producer.begins_after = pipeline
    return [pipeline, *producers]


def _at_tables(hub: HubProcess, book: Book, count: int) -> list[Actor]:
    """Writers of caches and tables."""
    chance, actors = hub.world.random, list[Actor]()
    if chance.random() < 0.25:
        actors += [IgniteWriter(number, hub, book, count) for number in range(chance.randint(1, 2))]
    if chance.random() < 0.2:
        actors.append(Mapper(0, hub, book, count))
    if chance.random() < 0.2:
        actors.append(Keeper(0, hub, book, count))
    if chance.random() < 0.2:
        actors += [IgniteCounter(number, hub, book, count // 3) for number in range(2)]
    if chance.random() < 0.2:
        actors += [Bank(number, hub, book, count // 5) for number in range(chance.randint(1, 3))]
    if chance.random() < 0.2:
        actors += [TableWriter(number, hub, book, count) for number in range(chance.randint(1, 2))]
    if chance.random() < 0.2:
        actors.append(Librarian(0, hub, book, count))
    return actors


def _immortals(hub: HubProcess, book: Book) -> list[Actor]:
    """Programs of immortals, and those who call them."""
    chance, actors = hub.world.random, list[Actor]()
    if chance.random() < 0.2:
        players = [ImmortalActor(number, hub, book, name) for number, name in enumerate(("ping", "pong"))]
        actors += players
        actors += [StandIn(number, hub, book, each) for number, each in enumerate(players) if chance.random() < 0.25]
    if chance.random() < 0.2:
        clerk = ClerkActor(0, hub, book)
        actors.append(clerk)
        actors += [Customer(0, hub, book, clerk) for _ in range(chance.randint(0, 1))]
    if chance.random() < 0.2:
        actors += tills(hub, book)
    return actors
