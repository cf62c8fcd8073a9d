"""The OpenAPI 3.1 document of the admin API, made from the registered verbs and their structs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace import __version__
from headrace.errors import error_classes
from headrace.hub.verbs import Verb

REF_TEMPLATE = "#/components/schemas/{name}"


class ErrorDetail(msgspec.Struct, frozen=True):
    """`code` is stable and for programs; `message` says what happened and what to do."""

    code: str
    message: str


class ErrorBody(msgspec.Struct, frozen=True):
    """What every refusal looks like."""

    error: ErrorDetail


_MEANING_OF_STATUS = {
    400: "The request cannot be meant",
    401: "Say who you are",
    403: "The right is missing",
    404: "There is no such thing",
    409: "It exists, or an expectation did not hold",
    410: "The records are trimmed or damaged",
    413: "The body is above http.request_bytes_max",
    415: "The body must be application/json",
    421: "The Host or Origin header names another site",
    422: "A named limit was met",
    429: "Too many failed logins from this address; Retry-After says when to try again",
    503: "Busy, closing, or the log failed",
    507: "The disk is full",
}


def document(verbs: Iterable[Verb]) -> dict[str, Any]:
    """The whole document."""
    listed = list(verbs)
    types = [verb.request for verb in listed] + [verb.response for verb in listed] + [ErrorBody]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    requests = schemas[: len(listed)]
    responses = schemas[len(listed) : -1]
    error_responses = {
        str(status): {
            "description": _MEANING_OF_STATUS[status],
            "content": {"application/json": {"schema": schemas[-1]}},
        }
        for status in sorted({error.status for error in error_classes().values()})
    }
    paths = {
        f"/api/v1/{verb.name}": {"post": _operation(verb, request, response, error_responses)}
        for verb, request, response in zip(listed, requests, responses, strict=True)
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace admin API",
            "version": __version__,
            "description": "Every admin verb as POST with a JSON body. SDK and command line call the same verbs.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"basic": []}],
        "tags": [{"name": noun} for noun in sorted({verb.name.split(".")[0] for verb in listed})],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token of `headrace user token`"},
                "basic": {"type": "http", "scheme": "basic", "description": "User and password"},
            },
        },
    }


def _operation(verb: Verb, request: dict[str, Any], response: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": verb.name,
        "summary": verb.summary,
        "description": f"Needs the right `{verb.right}`.",
        "tags": [verb.name.split(".")[0]],
        "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
        "responses": {"200": {"description": "Done", "content": {"application/json": {"schema": response}}}, **errors},
    }
