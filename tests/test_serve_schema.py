"""Whatever the OpenAPI description allows, and much that it does not, is answered without an error of the server."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from memformer_torch.serve.limits import Limits
from tests.serving import server, wild_model

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is in the extra dev")
EXAMPLES = int(os.environ.get("MEMFORMER_SCHEMA_EXAMPLES", "12"))
MODES = schemathesis.GenerationMode


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    limits = Limits(max_output=40, max_input=200, max_wait=20)
    with server(wild_model(), tmp_path_factory.mktemp("schema") / "s", limits=limits) as client:
        client("POST", "/sessions", {"name": "0"})
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")


@pytest.mark.parametrize("mode", [MODES.POSITIVE, MODES.NEGATIVE], ids=["as described", "otherwise"])
def test_no_error_of_the_server(schema, mode):
    answered = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None, derandomize=True)
        def ask(case):
            response = case.call()
            assert response.status_code < 500, f"{case.as_curl_command()}\n{response.text}"
            if response.status_code >= 400:
                assert response.json()["error"]["message"]
            answered.add(response.status_code)

        try:
            ask()
        except Unsatisfiable:
            assert mode is MODES.NEGATIVE  # an address that takes nothing has nothing to get wrong
    assert len(answered) >= 3, answered
