"""The interface is described completely and truly: routes, fields, errors, and what users were promised."""

import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from openapi_spec_validator import validate
from prometheus_client import CollectorRegistry

from api.console.routes import console_routes
from api.documentation import DOCUMENT_PATH, packaged_file
from api.spec.openapi import TAGS
from ca.errors import CATALOGUE
from coordinator.server import Shell
from deploy import coordinator_api
from node import listeners
from node.base.metrics import NodeMetrics
from node.uploads.services import NodeServices
from runtime.metrics import Metrics
from tests.api.promises import ENDPOINTS, Fields
from tests.cluster.harness import Cluster
from web.cors import ConsoleMembers
from web.web_access import WebAccess

FIELD_NAME = re.compile(r"[a-z][a-z0-9_]*")
Document = dict[str, Any]


@pytest.fixture(scope="module")
def document(cluster: Cluster) -> Document:
    """What a node says of itself."""
    answer = cluster.get(DOCUMENT_PATH, token=None)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    return cast(Document, answer.json)


def operations_of(document: Document) -> Iterable[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def routes_of(app: web.Application) -> set[tuple[str, str]]:
    """Method and path of every route; a HEAD that only repeats a GET is none of its own.

    The console is a client of the API and no part of it.
    """

    def no_members(_request: object) -> ConsoleMembers:
        return ConsoleMembers()

    console = {
        route.path
        for route in console_routes(
            has_content=True, node_url=str, members=no_members, current_members=no_members
        )
    }
    listed = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    console = {re.sub(r":[^{}]*(\{[^{}]*\})?\}$", "}", path) for path in console}  # without expressions
    found = {(method, path) for method, path in listed if path not in console}
    return {(method, path) for method, path in found if method != "HEAD" or ("GET", path) not in found}


def documented(document: Document) -> set[tuple[str, str]]:
    listed = {(method, path) for method, path, _ in operations_of(document)}
    return {(method, path) for method, path in listed if method != "HEAD" or ("GET", path) not in listed}


def node_application() -> web.Application:
    metrics = NodeMetrics(CollectorRegistry())
    records, api = SimpleNamespace(get=None), SimpleNamespace(access=WebAccess())
    services = cast(NodeServices, SimpleNamespace(api=api, records=records, metrics=metrics))
    return listeners.client_application(services, Metrics("node"))


def coordinator_application(directory: Path) -> web.Application:
    files = SimpleNamespace(audit=directory / "audit.log")
    own = SimpleNamespace(address="192.0.2.1", api_port=7441)
    shell = SimpleNamespace(
        metrics=Metrics("coordinator"),
        metadata=None,
        view=None,
        readiness=None,
        work=None,
        files=files,
        access=WebAccess(),
        config=SimpleNamespace(own=own),
    )
    return coordinator_api.application(cast(Shell, shell))


def test_document_is_one_of_openapi(document: Document) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == "1.0"
    validate(document)


def test_every_route_of_a_node_is_documented_and_every_path_is_a_route(document: Document) -> None:
    assert routes_of(node_application()) == documented(document)


def test_coordinator_documents_what_it_serves(cluster: Cluster, tmp_path: Path, document: Document) -> None:
    answer = cluster.get(f"{cluster.coordinators[0].url}{DOCUMENT_PATH}", token=None)
    assert routes_of(coordinator_application(tmp_path)) == documented(answer.json)
    assert documented(answer.json) < documented(document)
    validate(answer.json)


def test_operation_ids_are_unique_and_every_operation_is_explained(document: Document) -> None:
    names = [operation["operationId"] for _, _, operation in operations_of(document)]
    assert len(names) == len(set(names))
    for _, _, operation in operations_of(document):
        assert operation["summary"], operation["operationId"]
        assert len(operation["description"]) > 10, operation["operationId"]
        assert not operation["description"].startswith(("GET ", "POST ", "PUT ", "PATCH ", "DELETE "))


def test_every_tag_is_described_and_used(document: Document) -> None:
    used = {tag for _, _, operation in operations_of(document) for tag in operation["tags"]}
    assert used == set(TAGS) == {tag["name"] for tag in document["tags"]}


def test_every_field_has_a_description_and_an_example(document: Document) -> None:
    bare = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
        if not described.get("description") or not has_example(described)
    ]
    assert not bare


def has_example(schema: dict[str, Any]) -> bool:
    """Structs and flags need none of their own."""
    if "examples" in schema or "const" in schema or "enum" in schema or schema.get("type") == "boolean":
        return True
    if "anyOf" in schema:
        return any(has_example(branch) for branch in schema["anyOf"])
    return "$ref" in schema or "$ref" in schema.get("items", {})


def test_every_parameter_has_a_description(document: Document) -> None:
    for _, _, operation in operations_of(document):
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (operation["operationId"], parameter["name"])


def test_address_that_is_too_long_is_a_documented_answer_wherever_it_can_be(document: Document) -> None:
    without = [
        operation["operationId"]
        for _, path, operation in operations_of(document)
        if "{" in path or any(parameter["in"] == "query" for parameter in operation.get("parameters", []))
        if "414" not in operation["responses"]
    ]
    assert not without


def test_every_body_and_answer_has_a_complete_example(document: Document) -> None:
    def check(operation: dict[str, Any], content: dict[str, Any]) -> None:
        for media_type, each in content.items():
            if media_type == "application/json" and each["schema"]:
                told = (
                    [each["example"]]
                    if "example" in each
                    else [x["value"] for x in each["examples"].values()]
                )
                assert told, operation["operationId"]
                assert None not in leaves(told), (operation["operationId"], told)

    for _, _, operation in operations_of(document):
        check(operation, operation.get("requestBody", {}).get("content", {}))
        for response in operation["responses"].values():
            check(operation, response.get("content", {}))


def leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def test_every_error_code_is_documented_and_every_documented_one_exists(document: Document) -> None:
    codes = {kind.code for kind in CATALOGUE}
    assert set(document["components"]["responses"]) == codes
    assert set(document["components"]["schemas"]["Error"]["properties"]["code"]["enum"]) == codes


def test_every_error_has_the_status_of_its_code(document: Document) -> None:
    status_of = {kind.code: str(kind.status) for kind in CATALOGUE}
    for _, _, operation in operations_of(document):
        for status, response in operation["responses"].items():
            if "$ref" in response:
                assert status_of[response["$ref"].rpartition("/")[2]] == status
            elif status >= "400" and "content" in response:
                assert {status_of[code] for code in response["content"]["application/json"]["examples"]} == {
                    status
                }


def test_operations_that_take_a_credential_say_which_and_may_refuse_it(document: Document) -> None:
    schemes = document["components"]["securitySchemes"]
    assert all(
        (each["type"], each["in"], each["name"]) == ("apiKey", "header", "Authorization")
        for each in schemes.values()
    )
    free = {path for _, path, operation in operations_of(document) if not operation["security"]}
    assert free == {
        "/.well-known/jwks.json",
        "/api/v1/auth/invitations/redeem",
        "/api/v1/auth/providers",
        "/api/v1/auth/providers/{provider}/renewal",
        "/api/v1/auth/providers/{provider}/sign-in",
        "/api/v1/auth/providers/{provider}/sign-out",
        "/api/v1/auth/providers/{provider}/token",
        "/api/v1/cluster/ca",
        "/api/v1/files/{file_uuid}/content",  # OPTIONS: what tus can do here
        "/api/v1/public/files/{bucket_uuid}/{token}",
        "/api/v1/tickets/{ticket}",
        "/api/v1/project-files",  # OPTIONS, likewise
        "/api/v1/vms",
        "/api/v1/backups",
        DOCUMENT_PATH,
        "/docs",
        "/docs/{file}",
        "/healthz",
        "/metrics",
        "/metrics/targets",
        "/readyz",
    }
    for _, _, operation in operations_of(document):
        assert bool(operation["security"]) == ("401" in operation["responses"]), operation["operationId"]


# ---- what the interface promises --------------------------------------------------------------------------
def resolved(document: Document, schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def type_of(schema: dict[str, Any]) -> str:
    """The JSON type that a field has when it has a value."""
    if "anyOf" in schema:
        return type_of(schema["anyOf"][0])
    if "type" in schema:
        return str(schema["type"])
    if "enum" in schema:
        return "string" if isinstance(schema["enum"][0], str) else "other"
    return "any"


def types_in(document: Document, schema: dict[str, Any]) -> Fields:
    return {
        name: type_of(resolved(document, field))
        for name, field in resolved(document, schema)["properties"].items()
    }


@pytest.mark.parametrize("promise", ENDPOINTS, ids=lambda promise: f"{promise.method} {promise.path}")
def test_promised_endpoint_is_there_with_its_fields(promise: Any, document: Document) -> None:
    operation = document["paths"][promise.path][promise.method.lower()]
    success = next(status for status in operation["responses"] if status.startswith("2"))
    content = operation["responses"][success].get("content", {})
    if promise.takes:
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        offered = types_in(document, body)
        assert {name: offered.get(name) for name in promise.takes} == promise.takes
        assert set(resolved(document, body).get("required", [])) <= set(promise.takes)
    if promise.answers:
        schema = content["application/json"]["schema"]
        answer = schema.get("anyOf", [schema])[0]  # the first, unless the caller prefers another
        offered = types_in(document, answer)
        assert {name: offered.get(name) for name in promise.answers} == promise.answers
        assert set(promise.answers) <= set(resolved(document, answer)["required"])
    for name, fields in promise.elements.items():
        answer = resolved(document, content["application/json"]["schema"])
        element = answer["properties"][name]["items"]
        assert types_in(document, element).items() >= fields.items()


def test_promised_filter_and_enumerations(document: Document) -> None:
    listing = document["paths"]["/api/v1/project-files"]["get"]
    assert "project_id" in {parameter["name"] for parameter in listing["parameters"]}
    schemas = document["components"]["schemas"]
    states = {"pending", "uploading", "available", "tombstoned", "deleted"}
    compressions = {"deflate", "bz2", "xz", "zstd", "none"}
    assert set(schemas["ProjectFileBody"]["properties"]["status"]["enum"]) == states
    assert set(schemas["ProjectFileBody"]["properties"]["compression"]["enum"]) == compressions


# ---- the page in a browser --------------------------------------------------------------------------------
def test_page_loads_nothing_from_elsewhere(cluster: Cluster) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        page = cluster.get(f"{member.url}/docs", token=None)
        assert page.status == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        wanted = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
        assert wanted == ["data:,", "/docs/viewer.css", "/docs/viewer.js", "/docs/start.js"]
        for path in wanted[1:]:
            part = cluster.get(f"{member.url}{path}", token=None)
            assert part.status == 200
            assert part.headers["content-type"].startswith(("text/javascript", "text/css"))


def test_parts_of_the_page_are_those_of_the_package_and_no_others(cluster: Cluster) -> None:
    url = cluster.nodes[0].url
    assert cluster.get(f"{url}/docs/viewer.js", token=None).body == packaged_file("swagger_bundle.js")
    for name in ("redoc.js", "__init__.py", "..%2F..%2Fetc%2Fpasswd", "%2e%2e", "."):
        assert cluster.get(f"{url}/docs/{name}", token=None).status == 404, name
    head = cluster.request("HEAD", f"{url}/docs/viewer.css", token=None)
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) == len(packaged_file("swagger_style.css"))
    assert cluster.request("HEAD", f"{url}/docs", token=None).status == 200
