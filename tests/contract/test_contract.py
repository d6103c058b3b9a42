"""A short look at every operation; the long one is `make contract`."""

from typing import Any

import pytest

from api.documentation import DOCUMENT_PATH
from tests.cluster.harness import STRANGERS, Cluster
from tests.contract.fuzzing import EXCLUDED, OFFSET_TYPE, Report, operations_of, session_of, try_operation
from tests.contract.targets import Targets

EXAMPLES = 2
AIMED = 30


pytestmark = pytest.mark.filterwarnings("default")  # those of the generator are its own


def test_generated_requests_get_documented_answers(cluster: Cluster) -> None:
    document = cluster.get(DOCUMENT_PATH, token=None).json
    user_token = cluster.user_token("contract")
    targets, report, names = Targets(cluster, "contract", user_token), Report(), set()
    with session_of(cluster.ca, cluster.admin_token, next(STRANGERS)) as session:
        for operation in operations_of(document):
            names.add(operation.definition.raw["operationId"])
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
    assert {name for name, _ in report.answers} == names == everything - EXCLUDED


def tried_whoami(cluster: Cluster, document: Any) -> Report:
    """One operation, as the document has it now."""
    path = "/api/v1/auth/whoami"
    document["paths"] = {path: {"get": document["paths"][path]["get"]}}
    return tried(cluster, document, examples=2)


def tried(cluster: Cluster, document: Any, *, examples: int) -> Report:
    """All operations of a document, by an admin."""
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
                examples=examples,
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


def test_bytes_that_a_request_is_aimed_with_are_not_taken_for_broken(cluster: Cluster) -> None:
    """A creation by tus is aimed with headers that fit its bytes, and is granted then."""
    document, path = cluster.get(DOCUMENT_PATH, token=None).json, "/api/v1/project-files"
    body = document["paths"][path]["post"]["requestBody"]
    body["content"] = {OFFSET_TYPE: body["content"][OFFSET_TYPE]}
    document["paths"] = {path: {"post": document["paths"][path]["post"]}}
    report = tried(cluster, document, examples=AIMED)
    assert report.answers["create_project_file", 201]
    assert not report.findings, "\n\n".join(report.findings)
