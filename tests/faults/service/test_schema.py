"""Every route as /openapi.json describes it: made-up requests get no server error, and no answer it does not tell of."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks as kinds

from tests.service.conftest import ask, picture

PHASES = schemathesis.GenerationMode.all()
CHECKS = [
    kinds.not_a_server_error,
    schemathesis.checks.CHECKS.get_one("status_code_conformance"),
    schemathesis.checks.CHECKS.get_one("content_type_conformance"),
    schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as in test_requests
def test_no_request_gets_an_answer_that_is_not_described(client, campaign):
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    sent = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=campaign.size(3, 120),
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @operation.as_strategy_decorator
        def check(case):
            nonlocal sent
            sent += 1

        check()
    assert sent
    assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
    campaign.count("requests made up from the description of the service", sent)
