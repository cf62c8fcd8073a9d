"""The admin API against its own OpenAPI document: schemathesis makes up requests, right and wrong ones.

No answer may be a server error, and every answer must have a status and a body that the document describes.
"""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.forked_hub import ForkedHub

EXAMPLES_PER_VERB = 8
TIMEOUT_S = 120  # the first query starts a process, which takes long on a busy machine
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("api")
    with ForkedHub(folder) as hub:
        yield hub.addresses["http"]
    assert "Traceback" not in hub.log.read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_no_request_is_answered_with_what_the_document_does_not_say(address: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"http://{address}/api/openapi.json")
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(("/user.add", "/user.token")):  # the first user would lock the test out
            continue
        if operation.path.endswith("/hub.backup"):  # a made-up path that is right would be written to
            continue

        @settings(
            max_examples=EXAMPLES_PER_VERB,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def each(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=TIMEOUT_S)

        each()
        tried += 1
    assert tried > 5
