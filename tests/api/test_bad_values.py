"""A bad value is refused by the name of its field: one table over the operations of the OpenAPI document.

The document says the type and the bounds of each field and parameter, and each is broken in turn. What it
cannot say (a bucket that nobody has, a time that has passed) is in OTHERS.
"""

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest

from api.documentation import DOCUMENT_PATH
from tests.api.expectations import NOBODY, PAST, check_refused
from tests.cluster.harness import Answer, Cluster
from tests.contract.targets import Targets

Schema = dict[str, Any]
Found = tuple[str, str, Schema]  # method, path, operation

# They ask for another credential; tests/cluster/test_join*.py and test_intermediate.py try their fields.
JOINING: Final = {"join_node", "join_coordinator", "add_intermediate"}
OF_THE_TYPE: Final[dict[str, list[Any]]] = {
    "string": [7, True, [], {}],
    "integer": ["5", True, 1.5, 2**63, []],
    "boolean": [0, 1, "true"],
    "array": ["text", {"a": 1}, [7], [""]],
}
# Whatever of these a pattern does not allow, a field with that pattern must refuse.
PROBES: Final = (
    *("", " ", "a b", "a/b", "a//b", "../a", "a\nb", "a\r\nX: y", "a\x00b", "a\tb", "\x7f", "\u2028"),
    *("ü", "A", "0", "-1", "00", "zip", "x/", "text/ä", "x" * 129, "x" * 256, "0" * 17, "../../etc/passwd"),
)
TIMES: Final = ("tomorrow", "2096-02-03", "2096-02-03T04:05:06", "2096-02-30T04:05:06Z")
DEEP: Final = '{"a":' * 5000 + "1" + "}" * 5000
FOLDERS: Final = ["..", "a/../b", "./a", "x" * 256, "/".join("a" * 65)]
ADDRESSES: Final = ["example..org", "127.0.0.256", "local_host", ""]
PORTS: Final = [0, 65_536, -1]
OTHERS: Final[dict[str, dict[str, list[Any]]]] = {
    "create_project_file": {"bucket_id": [NOBODY], "path": FOLDERS},
    "create_vm": {
        "bucket_id": [NOBODY],
        "path": FOLDERS,
        "extra_attributes_json": [
            *("[", "[]", "null", " ", '{"a": NaN}', DEEP, '{"a":' + "[" * 128 + "]" * 128 + "}"),
            *('{"a": "' + "x" * 65_536 + '"}', '{"a": "' + "é" * 32_768 + '"}'),
        ],
        "md5": ["0" * 32],
    },
    "create_backup": {"bucket_id": [NOBODY], "path": FOLDERS, "source_node_id": ["a\tb"]},
    "update_project_file": {"path": FOLDERS, "project_id": ["other"], "bucket_id": [NOBODY]},
    "update_vm": {"path": FOLDERS, "extra_attributes_json": ["[", DEEP], "md5": ["0" * 32]},
    "update_backup": {"path": FOLDERS, "source_node_id": ["a\tb"]},
    "create_public_token": {
        "file_uuid": [NOBODY],
        "bucket_uuid": [NOBODY],
        "expires_at": [PAST, "2999-01-01T00:00:00Z"],
        "url": ["mine"],
    },
    "grant_file_permission": {"expires_at": [PAST], "granted_by": ["somebody"]},
    "grant_bucket_permission": {"expires_at": [PAST], "granted_by": ["somebody"]},
    "create_ticket": {"expires_at": ["2096-02-03T04:05:06Z"]},
    "mint_user_token": {"ttl_seconds": [30 * 24 * 3600 + 1], "roles": [["g"] * 65]},
    "renew_user_token": {"ttl_seconds": [30 * 24 * 3600 + 1], "user_id": ["me"], "generation": [1]},
    "add_coordinator": {"address": ADDRESSES, "peer_port": PORTS, "api_port": PORTS},
    "move_node": {"address": ADDRESSES},
}


class Client:
    """One connection that is kept: thousands of requests would otherwise be as many handshakes."""

    def __init__(self, cluster: Cluster) -> None:
        port = cluster.nodes[0].api_port
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=cluster.context)
        self._headers = {
            "Authorization": f"Bearer {cluster.admin_token}",
            "Content-Type": "application/json",
        }

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, self._headers)
        response = self._connection.getresponse()
        return Answer(response.status, {}, response.read())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    made = Client(cluster)
    yield made
    made.close()


@pytest.fixture(scope="module")
def document(cluster: Cluster) -> Schema:
    found: Schema = cluster.get(DOCUMENT_PATH, token=None).json
    return found


def operations_of(document: Schema) -> Iterator[Found]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] not in JOINING:
                yield method.upper(), path, operation


def body_of(document: Schema, operation: Schema) -> tuple[Schema, Schema]:
    """The schema of its JSON body, and what its example has for the required fields."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return {}, {}
    schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    return schema, {name: content["example"][name] for name in schema.get("required", ())}


def choices_of(schema: Schema) -> tuple[Schema, list[Any]]:
    """What a value may be, and the values that stand for none."""
    if "anyOf" not in schema:
        return schema, []
    value, nothing = schema["anyOf"]
    return value, nothing.get("enum", [nothing.get("const")])


def bad_values(schema: Schema) -> list[Any]:
    """Values that the schema of a field does not allow: by type, bounds, pattern, format and enumeration."""
    value, nothing = choices_of(schema)
    found = list(OF_THE_TYPE[value.get("type", "string")])
    if "minimum" in value:
        found += [value["minimum"] - 1, value["maximum"] + 1]
    if "enum" in value:
        found += ["other", "", value["enum"][0].upper()]
    if value.get("minLength"):
        found.append("")
    if "maxLength" in value:
        found.append("x" * (value["maxLength"] + 1))
    if "pattern" in value:
        found += [probe for probe in PROBES if not re.fullmatch(value["pattern"][1:-1], probe)]
    if "maxItems" in value:
        found += [["g"] * (value["maxItems"] + 1)]
        found += [[bad] for bad in bad_values(value["items"]) if isinstance(bad, str)]
    if value.get("format") == "date-time":
        found += TIMES
    return [bad for bad in [*found, None] if bad not in nothing or isinstance(bad, bool)]


def bad_texts(schema: Schema) -> list[str]:
    """The same for a parameter of a query, where everything is text."""
    value = choices_of(schema)[0]
    if value == {"type": "string"}:
        return ["2", "yes"]  # these are flags
    if value.get("type") == "integer":
        return ["x", "1.5", "-1", "\u0667", "9" * 30, *(str(bad) for bad in bad_values(schema)[-3:-1])]
    return [bad for bad in bad_values(schema) if isinstance(bad, str) and "\n" not in bad]


def place_of(cluster: Cluster, targets: Targets, method: str, path: str) -> str:
    """Where an operation finds something; a node is not destroyed by a request that is refused."""
    return path.format(**{"id": cluster.nodes[0].id} | targets.path_parameters(path, method))


def test_fields_of_bodies(cluster: Cluster, client: Client, document: Schema) -> None:
    targets, tried, wrong = Targets(cluster, "bad-values", ""), 0, list[str]()
    for method, path, operation in operations_of(document):
        schema, good = body_of(document, operation)
        if not schema:
            continue
        where = place_of(cluster, targets, method, path)
        is_lasting = "get" in document["paths"][path] and "/cluster/" not in path  # where figures move
        before = client.ask("GET", where) if is_lasting else None
        others = OTHERS.get(operation["operationId"], {})
        for field, described in schema["properties"].items():
            for bad in [*bad_values(described), *others.get(field, ())]:
                wrong += unnamed(client.ask(method, where, good | {field: bad}), where, field, bad)
                tried += 1
        for field in {*others, "owner_id", "unknown"} - set(schema["properties"]):
            for bad in others.get(field, ["somebody"]):
                wrong += unnamed(client.ask(method, where, good | {field: bad}), where, field, bad)
        for field in schema.get("required", ()):
            rest = {name: value for name, value in good.items() if name != field}
            wrong += unnamed(client.ask(method, where, rest), where, field, "nothing")
        if before is not None:
            assert client.ask("GET", where).body == before.body, where
    assert not wrong, "\n".join(wrong)
    assert tried > 1000
    assert set(OTHERS) <= {operation["operationId"] for _, _, operation in operations_of(document)}


def test_parameters_of_queries(cluster: Cluster, client: Client, document: Schema) -> None:
    targets, tried, wrong = Targets(cluster, "bad-queries", ""), 0, list[str]()
    for method, path, operation in operations_of(document):
        parameters = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
        if not parameters or method == "HEAD":  # whose refusal has no body
            continue
        where = place_of(cluster, targets, method, path)
        body = body_of(document, operation)[1] if method in ("POST", "PUT") else None
        for parameter in parameters:
            name = parameter["name"]
            for bad in bad_texts(parameter["schema"]):
                answer = client.ask(method, f"{where}?{name}={quote(bad, safe='')}", body)
                wrong += unnamed(answer, where, name, bad)
                tried += 1
            twice = client.ask(method, f"{where}?{name}=&{name}=", body)
            wrong += unnamed(twice, where, name, "given twice")
    assert not wrong, "\n".join(wrong)
    assert tried > 200


def unnamed(answer: Answer, where: str, field: str, bad: object) -> list[str]:
    """What was answered, unless that is a refusal by the name of the field."""
    try:
        check_refused(answer, "invalid_request")
        assert re.match(rf"{field}\b", answer.json["details"])
    except (AssertionError, ValueError):
        return [f"{where} {field} {str(bad)[:40]!r}: {answer.status} {answer.body[:120]!r}"]
    return []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"filename": "a", "filename": "b", "project_id": "c"}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_body_that_is_no_object_is_refused(cluster: Cluster, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = cluster.request("POST", "/project-files", content=content, headers=headers)
    check_refused(answer, "invalid_request")
