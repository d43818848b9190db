"""Every route as /openapi.json describes it: made-up requests get no server error, and no answer it leaves out."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks

from tests.service.conftest import ask, picture

# Those that can be told of one answer. Not that a request without its token is refused: this service is open.
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as in test_requests
def test_no_request_gets_an_answer_that_is_not_described(serve, campaign):
    client, sent = serve(no_auth=True, rate_limit=0), 0  # no_auth: made-up requests call it by any name
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    for result in schema.get_all_operations():
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            sent += _tried(result.ok(), mode, campaign.size(2, 100))
    assert sent > 20
    assert client.get("/readyz").status_code == 200
    assert ask(client, picture(5)).status_code == 200
    campaign.count("requests generated from the OpenAPI schema", sent)


def _tried(operation, mode, most: int) -> int:
    """How many requests were sent; the first that is answered otherwise than described raises."""
    sent = 0

    @settings(
        max_examples=most, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(mode))
    def check(case) -> None:
        nonlocal sent
        sent += 1
        case.validate_response(case.call(), checks=CHECKS)

    try:
        check()
    except BaseException as error:
        if "unsatisfiable" not in type(error).__name__.lower():  # some routes have nothing to get wrong
            raise
    return sent
