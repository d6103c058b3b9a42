"""The id of a request is found in the logs of every member that worked for it."""

import base64
import json
import uuid
from typing import Any

from deploy.processes import wait_until
from tests.cluster.harness import API, Cluster


def calls_of(cluster: Cluster, request_id: str) -> list[dict[str, Any]]:
    """What the coordinators have logged of calls for a request."""
    logs = cluster.logs()
    lines = [line for member in cluster.coordinators for line in logs[member.id].splitlines()]
    found = [json.loads(line) for line in lines if request_id in line]
    return [line for line in found if line["message"] == "call"]


def wait_for_call(cluster: Cluster, request_id: str, call: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def is_logged() -> bool:
        found[:] = [line for line in calls_of(cluster, request_id) if line["call"] == call]
        return bool(found)

    wait_until(is_logged, what=f"{call} of {request_id} in a coordinator's log", timeout_s=10)
    return found[-1]


def test_change_is_found_on_the_coordinator_by_its_request_id(cluster: Cluster) -> None:
    request_id = f"trace-{uuid.uuid4()}"
    body = {"filename": "traced.gns3p", "project_id": "trace"}
    node = cluster.nodes[1]
    answer = cluster.post("/project-files", body, node=node, headers={"X-Request-Id": request_id})
    assert (answer.status, answer.headers["x-request-id"]) == (201, request_id)
    line = wait_for_call(cluster, request_id, "create_project_file")
    assert (line["request_id"], line["caller"], line["status"]) == (request_id, node.id, "ok")


def test_refused_read_is_found_on_the_coordinator(cluster: Cluster) -> None:
    request_id = f"trace-{uuid.uuid4()}"
    path = f"/project-files/{uuid.uuid4()}"
    assert cluster.get(path, headers={"X-Request-Id": request_id}).status == 404
    assert wait_for_call(cluster, request_id, "get_project_file")["status"] == "not_found"


def test_request_id_follows_an_upload_that_another_node_holds(cluster: Cluster) -> None:
    request_id = f"trace-{uuid.uuid4()}"
    created = cluster.create(size_bytes=5)
    holder = next(node for node in cluster.nodes if node.url in created["upload_url"])
    other = next(node for node in cluster.nodes if node != holder)
    path = f"{API}/files/{created['file_uuid']}/content"
    headers = {"X-Request-Id": request_id}
    assert cluster.request("PUT", path, node=other, content=b"trace", headers=headers).status == 200
    assert wait_for_call(cluster, request_id, "complete_upload")["caller"] == holder.id


def test_question_where_content_would_go_has_no_line_of_its_own(cluster: Cluster) -> None:
    request_id = f"trace-{uuid.uuid4()}"
    names = (("filename", "traced.gns3p"), ("project_id", "trace"))
    headers = {
        "X-Request-Id": request_id,
        "Tus-Resumable": "1.0.0",
        "Upload-Length": "5",
        "Upload-Metadata": ",".join(
            f"{name} {base64.b64encode(text.encode()).decode()}" for name, text in names
        ),
        "Content-Type": "application/offset+octet-stream",
    }
    answer = cluster.request("POST", f"{API}/project-files", content=b"trace", headers=headers)
    assert answer.status == 201
    wait_for_call(cluster, request_id, "create_project_file")
    assert {line["call"] for line in calls_of(cluster, request_id)} == {"create_project_file"}
