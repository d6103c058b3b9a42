"""A short look at every operation; the long one is `make contract`."""

from typing import Any

import pytest

from api.documentation import DOCUMENT_PATH
from tests.cluster.harness import STRANGERS, Cluster
from tests.contract.fuzzing import EXCLUDED, Report, operations_of, session_of, try_operation
from tests.contract.targets import Targets

EXAMPLES = 4


pytestmark = pytest.mark.filterwarnings("default")  # those of the generator are its own


def test_generated_requests_get_documented_answers(cluster: Cluster) -> None:
    document = cluster.get(DOCUMENT_PATH, token=None).json
    user_token = cluster.user_token("contract")
    targets, report, tried = Targets(cluster, "contract", user_token), Report(), set()
    with session_of(cluster.ca, cluster.admin_token, next(STRANGERS)) as session:
        for operation in operations_of(document):
            tried.add(operation.definition.raw["operationId"])
            try_operation(
                operation,
                url=cluster.nodes[0].url,
                session=session,
                targets=targets,
                report=report,
                seed_number=1,
                examples=EXAMPLES,
            )
    assert not report.findings, "\n\n".join(report.findings)
    everything = {each["operationId"] for methods in document["paths"].values() for each in methods.values()}
    assert {name for name, _ in report.answers} == tried == everything - EXCLUDED


def tried_whoami(cluster: Cluster, document: Any) -> Report:
    """One operation, as the document has it now."""
    path = "/api/v1/auth/whoami"
    document["paths"] = {path: {"get": document["paths"][path]["get"]}}
    report, targets = Report(), Targets(cluster, "contract", "")
    with session_of(cluster.ca, cluster.admin_token, next(STRANGERS)) as session:
        for operation in operations_of(document):
            try_operation(
                operation,
                url=cluster.nodes[0].url,
                session=session,
                targets=targets,
                report=report,
                seed_number=1,
                examples=2,
            )
    return report


def test_undescribed_field_in_an_answer_is_found(cluster: Cluster) -> None:
    document = cluster.get(DOCUMENT_PATH, token=None).json
    user = document["components"]["schemas"]["CallerBody"]
    user["required"].remove("groups")
    del user["properties"]["groups"]
    assert "groups" in tried_whoami(cluster, document).findings[0]


def test_undescribed_status_is_found(cluster: Cluster) -> None:
    document = cluster.get(DOCUMENT_PATH, token=None).json
    responses = document["paths"]["/api/v1/auth/whoami"]["get"]["responses"]
    responses["202"] = responses.pop("200")
    assert "200" in tried_whoami(cluster, document).findings[0]


def test_broken_request_that_is_taken_is_found(cluster: Cluster) -> None:
    document = cluster.get(DOCUMENT_PATH, token=None).json
    wanted = {"name": "wanted", "in": "query", "required": True, "schema": {"type": "integer"}}
    document["paths"]["/api/v1/auth/whoami"]["get"]["parameters"] = [wanted]
    assert "accepted" in tried_whoami(cluster, document).findings[0]
