"""What every error class says of itself, and that all wires go by it."""

import importlib
import pkgutil
from collections.abc import Iterator
from http import HTTPStatus

import pyarrow.flight as flight
import pytest

import headrace
from headrace.admin import openapi
from headrace.client.connection import NeverSent, NotBegun
from headrace.client.puts import NotStored
from headrace.errors import HeadraceError, error_classes
from headrace.protocols.flight import codec
from headrace.protocols.flight.bridge import to_flight_error

RETRIABLE = {
    "StillRunning",
    "Busy",
    "Closed",
    "DiskFull",
    "LogFailed",
    "NotHere",
    "NeverSent",
    "NotBegun",
    "NotStored",
    "StoreUnavailable",
    "Unreachable",
}


def every_class() -> list[type[HeadraceError]]:
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [kind for kind in below(HeadraceError) if kind.__module__.startswith("headrace.")]


def below(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def test_a_code_belongs_to_one_class() -> None:
    coded = [kind for kind in every_class() if "code" in vars(kind)]
    assert len({kind.code for kind in coded}) == len(coded)
    for kind in coded:
        assert error_classes()[kind.code] is kind


def test_every_status_is_one_of_http() -> None:
    for kind in every_class():
        assert 400 <= HTTPStatus(kind.status) < (600 if kind.retriable else 500), kind


def test_what_may_be_tried_again() -> None:
    retriable = {kind for kind in every_class() if kind.retriable}
    assert {kind.__name__ for kind in retriable} == RETRIABLE
    assert {kind.status for kind in retriable} == {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE}
    for kind in retriable - {NeverSent, NotBegun, NotStored}:
        assert kind.__module__ == "headrace.errors", "a client may not have imported it"


def test_the_api_document_names_the_statuses_of_the_classes() -> None:
    assert {kind.status for kind in every_class()} == set(openapi._MEANING_OF_STATUS)


@pytest.mark.parametrize("name", sorted(RETRIABLE - {"NeverSent", "NotBegun", "NotStored"}))
def test_flight_says_unavailable(name: str) -> None:
    error = getattr(headrace.errors, name)("later")
    sent = to_flight_error(error)
    assert isinstance(sent, flight.FlightUnavailableError)
    there = codec.decode_error(sent.extra_info)
    assert (type(there), str(there)) == (type(error), "later")
