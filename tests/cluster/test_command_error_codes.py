"""Every error code of the API, reached by a command: its exit code, and the line that names it.

One cannot be reached: `request_timeout` is for who sends a request slowly, and the command sends it at once.
"""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from ca.errors import CATALOGUE
from tests.api.expectations import KINDS, NOBODY, create, person, store
from tests.api.test_error_codes import OTHER_SHA256, connect
from tests.api.test_error_codes import internal as break_uploads
from tests.cluster.command_output import objects, output, refusal
from tests.cluster.harness import Cluster

Refusal = tuple[int, str]
EXIT_CODES: Final = {
    "invalid_request": 2,
    "unauthorized": 3,
    "forbidden": 3,
    "not_found": 4,
    "method_not_allowed": 1,
    "not_acceptable": 1,
    "request_timeout": 1,
    "conflict": 5,
    "not_available": 5,
    "offset_mismatch": 5,
    "protected": 5,
    "gone": 4,
    "precondition_failed": 5,
    "payload_too_large": 1,
    "uri_too_long": 1,
    "unsupported_media_type": 1,
    "range_not_satisfiable": 1,
    "upload_locked": 5,
    "rate_limited": 6,
    "checksum_mismatch": 1,
    "internal": 1,
    "not_implemented": 1,
    "unavailable": 6,
    "insufficient_storage": 6,
}
OUT_OF_REACH: Final = {"request_timeout"}
QUICKLY: Final = ("--deadline", "0.5")


def calls(*arguments: str) -> Callable[[Cluster, Path], Refusal]:
    """`filestore api` with these."""
    return lambda cluster, _: refusal(cluster, "api", *arguments)


def in_json(**fields: Any) -> tuple[str, str]:
    return "--data", json.dumps(fields)


def send(cluster: Cluster, url: str, *options: str) -> Refusal:
    """A small JSON object as the content of an upload, to the node that holds it."""
    parts = urlsplit(url)
    return refusal(
        cluster, "api", "PUT", parts.path, *in_json(a=1), "--url", f"https://{parts.netloc}", *options
    )


def token_file(directory: Path, token: str) -> str:
    path = directory / "token"
    path.touch(mode=0o600)
    path.write_text(token)
    return str(path)


def unauthorized(cluster: Cluster, directory: Path) -> Refusal:
    return refusal(cluster, "ls", "--token-file", token_file(directory, "wrong"))


def forbidden(cluster: Cluster, directory: Path) -> Refusal:
    return refusal(cluster, "user", "ls", "--token-file", token_file(directory, person(cluster).token))


def not_available(cluster: Cluster, directory: Path) -> Refusal:
    return refusal(cluster, "get", str(create(cluster, "/vms")["file_uuid"]), "-o", str(directory / "x"))


def offset_mismatch(cluster: Cluster, directory: Path) -> Refusal:
    url = create(cluster, "/vms", size_bytes=20)["upload_url"]
    return send(cluster, url, "--header", "Content-Range: bytes 5-12/20")


def protected(cluster: Cluster, directory: Path) -> Refusal:
    file_uuid = store(cluster, "/vms", b"protected for a day")
    answer = cluster.post(f"/files/{file_uuid}/protection", {"protect_days": 1})
    assert answer.status == 200, answer.body
    return refusal(cluster, "api", "DELETE", f"files/{file_uuid}")


def gone(cluster: Cluster, directory: Path) -> Refusal:
    file_uuid = store(cluster, "/vms", b"x")
    (made,) = objects(cluster, "share", "create", file_uuid)
    cluster.remember(made["token"])
    output(
        cluster,
        "share",
        "rm",
        file_uuid,
        json.loads(output(cluster, "share", "ls", file_uuid, "--json"))["id"],
    )
    return refusal(cluster, "api", "GET", urlsplit(made["url"]).path)


def precondition_failed(cluster: Cluster, directory: Path) -> Refusal:
    file_uuid = store(cluster, "/vms", b"x")
    return refusal(cluster, "api", "GET", f"files/{file_uuid}", "-H", f'If-Match: "{OTHER_SHA256}"')


def payload_too_large(cluster: Cluster, directory: Path) -> Refusal:
    return send(cluster, create(cluster, "/vms", size_bytes=3)["upload_url"])


def range_not_satisfiable(cluster: Cluster, directory: Path) -> Refusal:
    file_uuid = store(cluster, "/vms", b"1234567")
    return refusal(cluster, "api", "GET", f"files/{file_uuid}", "-H", "Range: bytes=7-")


def upload_locked(cluster: Cluster, directory: Path) -> Refusal:
    """One request has begun to write, and waits; the command comes, and gives up."""
    url = create(cluster, "/vms", size_bytes=10)["upload_url"]
    parts = urlsplit(url)
    holder = next(node for node in cluster.nodes if node.api_port == parts.port)
    with connect(cluster, holder) as first:
        head = f"PUT {parts.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n"
        first.sendall(f"{head}Authorization: Bearer {cluster.admin_token}\r\n\r\n".encode())
        assert first.recv(64).startswith(b"HTTP/1.1 100 ")
        first.sendall(b"12345")
        return send(cluster, url, *QUICKLY)


def rate_limited(cluster: Cluster, directory: Path) -> Refusal:
    """What is deleted stays on the disks for a while, and may be there as much again as the quota allows."""
    wanted = {"name": f"full-{secrets.token_hex(4)}", "quota_bytes": 1000}
    bucket_id = cluster.post("/buckets", wanted).json["bucket_id"]
    assert cluster.request("PATCH", f"/buckets/{bucket_id}", body={"trash_days": 0}).status == 200
    for _ in range(2):
        file_uuid = store(cluster, "/vms", secrets.token_bytes(900), bucket_id=bucket_id)
        assert cluster.request("DELETE", f"/files/{file_uuid}").status == 200
    fields = KINDS["/vms"] | {"size_bytes": 900, "bucket_id": bucket_id}
    return refusal(cluster, "api", "POST", "vms", *in_json(**fields), *QUICKLY)


def checksum_mismatch(cluster: Cluster, directory: Path) -> Refusal:
    return send(cluster, create(cluster, "/vms", blob_sha256=OTHER_SHA256)["upload_url"])


CAUSES: Final[dict[str, Callable[[Cluster, Path], Refusal]]] = {
    "invalid_request": calls("POST", "vms", "--data", "{}"),
    "unauthorized": unauthorized,
    "forbidden": forbidden,
    "not_found": calls("GET", f"files/{NOBODY}"),
    "method_not_allowed": calls("PUT", "buckets", "--data", "{}"),
    "not_acceptable": calls("GET", "buckets", "--header", "Accept: text/html"),
    "conflict": lambda cluster, _: refusal(cluster, "bucket", "create", "default"),
    "not_available": not_available,
    "offset_mismatch": offset_mismatch,
    "protected": protected,
    "gone": gone,
    "precondition_failed": precondition_failed,
    "payload_too_large": payload_too_large,
    "uri_too_long": calls("GET", f"buckets?{'x' * 9000}"),
    "unsupported_media_type": calls("POST", "buckets", "--data", "{}", "-H", "Content-Type: text/plain"),
    "range_not_satisfiable": range_not_satisfiable,
    "upload_locked": upload_locked,
    "rate_limited": rate_limited,
    "checksum_mismatch": checksum_mismatch,
    "not_implemented": calls("GET", "buckets", "-H", "Transfer-Encoding: gzip, chunked"),
    "insufficient_storage": calls("POST", "vms", *in_json(**KINDS["/vms"], size_bytes=2**53 - 1)),
}
FAULTS: Final = {"internal", "unavailable"}


def test_every_code_of_the_catalogue_is_reached_here() -> None:
    codes = {kind.code for kind in CATALOGUE}
    assert set(EXIT_CODES) == codes
    assert {*CAUSES, *FAULTS, *OUT_OF_REACH} == codes


IN_EVERY_RUN = ("conflict", "forbidden", "invalid_request", "not_found", "unauthorized")


@pytest.mark.parametrize(
    "code", [each if each in IN_EVERY_RUN else pytest.param(each, marks=pytest.mark.long) for each in CAUSES]
)
def test_code_has_its_exit_code_and_a_line_that_names_it(cluster: Cluster, tmp_path: Path, code: str) -> None:
    exit_code, line = CAUSES[code](cluster, tmp_path)
    assert (exit_code, line.partition(": ")[0]) == (EXIT_CODES[code], code)
    assert len(line.partition(": ")[2]) > 8


@pytest.mark.long
def test_faults_of_the_service_have_their_exit_codes(own_cluster: Cluster) -> None:
    cluster, node = own_cluster, own_cluster.nodes[0]
    break_uploads(cluster)
    broken = create(cluster, "/vms", size_bytes=8)
    for each in cluster.nodes:
        (cluster.data(each) / "uploads" / broken["file_uuid"] / "data").mkdir(parents=True)
    as_a_piece = ("--header", "Content-Range: bytes 0-7/8")  # which goes to a file, however small it is
    code, line = send(cluster, broken["upload_url"], *as_a_piece)
    assert (code, line.partition(": ")[0]) == (EXIT_CODES["internal"], "internal")
    assert "under request id" in line
    audit = cluster.data(node) / "audit.log"
    audit.unlink()
    audit.mkdir()
    code, line = refusal(cluster, "api", "POST", "jobs/expire", "--url", node.url, *QUICKLY)
    assert (code, line.partition(": ")[0]) == (EXIT_CODES["unavailable"], "unavailable")
