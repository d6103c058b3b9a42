"""Uploads over HTTP, beyond the basics in the cluster tests: checksums, MD5, steps that are repeated."""

import base64
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from node.packs.store import BLOB_BYTES_MAX
from tests.api.expectations import check_refused
from tests.cluster.harness import Answer, Cluster, require_curl
from tests.cluster.test_uploads import TUS, Upload, begin, digest_of

LARGE_BYTES = BLOB_BYTES_MAX + 1  # that is not taken in as a whole

CONTENT = os.urandom(300_000)


def checksum_of(content: bytes, algorithm: str = "sha1") -> str:
    return f"{algorithm} {base64.b64encode(hashlib.new(algorithm, content).digest()).decode()}"


def test_options_offers_checksums(cluster: Cluster) -> None:
    path = "/files/0192f0c0-0000-7000-8000-000000000000/content"
    answer = cluster.request("OPTIONS", path, token=None)
    assert answer.headers["tus-checksum-algorithm"] == "sha256,sha1,md5"
    assert "checksum" in answer.headers["tus-extension"].split(",")


@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5"])
@pytest.mark.parametrize("at_holder", [True, False])
def test_pieces_with_right_checksums_complete_the_file(
    cluster: Cluster, algorithm: str, at_holder: bool
) -> None:
    upload = Upload(cluster, size_bytes=len(CONTENT))
    node = upload.holder if at_holder else upload.other
    for start in range(0, len(CONTENT), 100_000):
        piece = CONTENT[start : start + 100_000]
        answer = upload.patch(start, piece, node=node, Upload_Checksum=checksum_of(piece, algorithm))
        assert answer.status == 204, answer.body
    assert upload.content() == CONTENT


@pytest.mark.parametrize(
    "headers",
    [
        {"Upload-Checksum": checksum_of(b"x", "sha256")},
        {"Upload-Checksum": checksum_of(b"x", "sha1")},
        {"Upload-Checksum": checksum_of(b"x", "md5")},
        {"Content-Digest": digest_of(b"x")},
        {"Upload-Checksum": checksum_of(b"efgh"), "Content-Digest": digest_of(b"x")},
    ],
)
def test_piece_with_a_wrong_checksum_is_refused_and_not_kept(
    cluster: Cluster, headers: dict[str, str]
) -> None:
    upload = Upload(cluster, size_bytes=8)
    assert upload.patch(0, b"abcd").status == 204
    answer = upload.send("PATCH", b"efgh", {**TUS, "Upload-Offset": "4", **headers})
    assert (answer.status, answer.json["code"]) == (460, "checksum_mismatch")
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert (upload.offset(), upload.status()) == (4, "uploading")
    assert upload.patch(4, b"efgh", Upload_Checksum=checksum_of(b"efgh")).status == 204
    assert upload.content() == b"abcdefgh"


@pytest.mark.parametrize("value", ["sha512 eA==", "sha1 !", "sha1 eA==", "sha1", ""])
def test_checksum_that_cannot_be_checked_is_refused(cluster: Cluster, value: str) -> None:
    upload = Upload(cluster, size_bytes=4)
    answer = upload.patch(0, b"abcd", Upload_Checksum=value)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert answer.json["details"].startswith("Upload-Checksum: ")
    assert upload.offset() == 0


def test_piece_whose_checksum_cannot_be_checked_because_it_was_cut_off_is_not_kept(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=10)
    lost = begin(upload, b"abcd", 10, checksum=checksum_of(b"abcdefghij"))
    lost.close()
    assert upload.offset() == 0
    assert upload.patch(0, b"abcdefghij", Upload_Checksum=checksum_of(b"abcdefghij")).status == 204
    assert upload.content() == b"abcdefghij"


def test_digest_of_the_whole_is_checked_when_the_last_piece_came(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=8)
    assert upload.patch(0, b"abcd", Repr_Digest=digest_of(b"abcdefgh")).status == 204
    assert upload.patch(4, b"efgh", Repr_Digest=digest_of(b"other")).status == 460
    assert upload.offset() == 0
    assert upload.patch(0, b"abcdefgh", Repr_Digest=digest_of(b"abcdefgh")).status == 204
    assert upload.content() == b"abcdefgh"


@pytest.mark.parametrize("way", ["patch", "piece"])
def test_log_never_hears_of_all_bytes_of_content_with_another_digest(cluster: Cluster, way: str) -> None:
    """Else whoever asked for the offset then would complete it."""
    content = os.urandom(12_000_000)
    upload, half = Upload(cluster, size_bytes=len(content)), len(content) // 2
    assert upload.patch(0, content[:half]).status == 204
    told, headers = set(), {"Repr-Digest": digest_of(b"other")}
    with ThreadPoolExecutor(1) as other:
        if way == "patch":
            sending = other.submit(upload.patch, half, content[half:], Repr_Digest=headers["Repr-Digest"])
        else:
            headers["Content-Range"] = f"bytes {half}-{len(content) - 1}/{len(content)}"
            sending = other.submit(upload.send, "PUT", content[half:], headers)
        while not sending.done():
            told.add(cluster.get(f"/files/{upload.file_uuid}/status", node=upload.holder).json["offset"])
        assert sending.result().status == 460
    assert max(told) < len(content)
    assert upload.offset() == 0


def test_declared_digests_that_contradict_each_other_keep_what_came(cluster: Cluster) -> None:
    content, size_bytes = os.urandom(LARGE_BYTES), LARGE_BYTES
    upload = Upload(cluster, size_bytes=size_bytes, blob_sha256=hashlib.sha256(content).hexdigest())
    assert upload.patch(0, content, Repr_Digest=digest_of(b"other")).status == 460
    assert upload.offset() == size_bytes  # and by that it is complete
    assert upload.patch(size_bytes, b"").status == upload.patch(0, content).status == 409
    assert upload.content() == content


def test_digests_that_contradict_each_other_keep_nothing_of_small_content(cluster: Cluster) -> None:
    upload = Upload(cluster, size_bytes=4, blob_sha256=hashlib.sha256(b"abcd").hexdigest())
    assert upload.patch(0, b"abcd", Repr_Digest=digest_of(b"other")).status == 460
    assert upload.offset() == 0
    assert upload.patch(0, b"abcd", Repr_Digest=digest_of(b"abcd")).status == 204
    assert upload.content() == b"abcd"


@pytest.mark.parametrize("at_holder", [True, False])
def test_content_is_written_only_where_its_entity_tag_is_as_named(cluster: Cluster, at_holder: bool) -> None:
    upload = Upload(cluster, size_bytes=8)
    node = upload.holder if at_holder else upload.other
    none_yet, this = {"If-None-Match": "*"}, {"If-Match": f'"{hashlib.sha256(b"abcdefgh").hexdigest()}"'}
    for named in (this, {"If-Match": "*"}):
        for refused in (
            upload.send("PUT", b"abcdefgh", named, node=node),
            upload.patch(0, b"abcd", node=node, **named),
            upload.send("DELETE", headers=TUS | named, node=node),
        ):
            check_refused(refused, "precondition_failed", "If-Match")
    assert upload.offset() == 0
    assert upload.send("PUT", b"abcdefgh", none_yet, node=node).status == 200
    for known in (none_yet, {"If-None-Match": this["If-Match"]}):
        refused = upload.send("PUT", b"abcdefgh", known, node=node)
        check_refused(refused, "precondition_failed", "If-None-Match")
    check_refused(upload.send("PUT", b"abcdefgh", {"If-Match": '"x"'}, node=node), "precondition_failed")
    for holds in (this, {"If-Match": "*"}, {"If-None-Match": '"x"'}):
        assert upload.send("PUT", b"abcdefgh", holds, node=node).status == 200
    head = upload.send("HEAD", headers=TUS | none_yet, node=node)
    assert head.headers["upload-offset"] == "8"  # it tells of the upload, whatever the content is
    assert upload.content() == b"abcdefgh"


@pytest.mark.parametrize("at_holder", [True, False])
def test_last_step_may_be_repeated_and_answers_the_same(cluster: Cluster, at_holder: bool) -> None:
    upload = Upload(cluster, size_bytes=8)
    node = upload.holder if at_holder else upload.other
    assert upload.put(b"abcd", Content_Range="bytes 0-3/8").status == 202
    first = upload.put(b"efgh", Content_Range="bytes 4-7/8")
    assert first.status == 200

    def put(content: bytes, span: str = "bytes 4-7/8", **digests: str) -> Answer:
        headers = {"Content-Range": span} if span else {}
        named = {name.replace("_", "-"): value for name, value in digests.items()}
        return upload.send("PUT", content, headers | named, node=node)

    def patch(offset: int, content: bytes, **headers: str) -> int:
        return upload.patch(offset, content, node=node, **headers).status

    for again in (
        put(b"efgh"),
        put(b"efgh", "bytes 4-7/*", Content_Digest=digest_of(b"efgh")),
        put(b"abcdefgh", "", Repr_Digest=digest_of(b"abcdefgh")),
        put(b"", "bytes */8"),
    ):
        assert (again.status, again.json) == (200, first.json)
    others = [put(b"efgx"), put(b"abcd", "bytes 0-3/8"), put(b"fgh", "bytes 5-7/9"), put(b"abcdefgx", "")]
    others += [put(b"abcdefg", ""), put(b"abcdefghi", "")]
    assert [answer.status for answer in others] == [409] * 6
    assert [patch(4, b"efgh"), patch(8, b""), patch(0, b"abcdefgh")] == [409] * 3  # none was a PATCH
    wrong = [
        put(b"efgh", Content_Digest=digest_of(b"x")),
        put(b"abcdefgh", "", Repr_Digest=digest_of(b"x")),
        put(b"", "bytes */8", Repr_Digest=digest_of(b"x")),
    ]
    assert [answer.status for answer in wrong] == [460] * 3
    assert upload.content() == b"abcdefgh"


@pytest.mark.parametrize("at_holder", [True, False])
@pytest.mark.parametrize("pieces", [(4, 8), (8,), (4, 4, 8), (0, 8), (4, 8, 8)])
def test_patch_of_an_upload_that_has_ended_is_the_one_that_ended_it(
    cluster: Cluster, at_holder: bool, pieces: tuple[int, ...]
) -> None:
    upload = Upload(cluster, size_bytes=8)
    node = upload.holder if at_holder else upload.other
    content = b"abcdefgh"

    def patch(start: int, piece: bytes, **headers: str) -> Answer:
        return upload.patch(start, piece, node=node, **headers)

    at, last = 0, 0
    for stop in pieces:
        if at < 8:
            last = at
        assert patch(at, content[at:stop]).status == (204 if at < 8 else 409)
        at = stop
    again = patch(last, content[last:], Upload_Checksum=checksum_of(content[last:]))
    assert (again.status, again.headers["upload-offset"]) == (204, "8")
    assert patch(last, content[last:]).status == 204
    assert patch(last, content[last:], Upload_Checksum=checksum_of(b"x")).status == 460
    assert patch(last, content[last:], Repr_Digest=digest_of(b"x")).status == 460
    for start in range(9):
        others = [content[start:-1] + b"x", content[start:6], content[start:] + b"i"]
        if start != last:
            others.append(content[start:])
        assert {patch(start, other).status for other in others} == {409}, start
    assert upload.content() == content


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=x",
        "Multipart/Mixed",
        " multipart/form-data\t;boundary=x",
        "application/x-www-form-urlencoded",
        "APPLICATION/X-WWW-Form-Urlencoded; charset=utf-8",
    ],
)
@pytest.mark.parametrize("at_holder", [True, False])
def test_form_around_content_is_refused(cluster: Cluster, content_type: str, at_holder: bool) -> None:
    upload = Upload(cluster)
    node = upload.holder if at_holder else upload.other
    for span in ({}, {"Content-Range": "bytes 0-3/*"}):
        answer = upload.send("PUT", b"abcd", {"Content-Type": content_type, **span}, node=node)
        check_refused(answer, "unsupported_media_type", "Content-Type")
    assert (upload.offset(), upload.status()) == (0, "pending")


def test_who_sends_the_file_alone_as_a_form_reads_which_header_cures_it(cluster: Cluster) -> None:
    upload = Upload(cluster)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    told = upload.send("PUT", b"a\nb", form).json["details"]
    header = "Content-Type: application/octet-stream"
    assert header in told
    assert upload.send("PUT", b"a\nb", dict([header.split(": ")])).status == 200
    assert upload.content() == b"a\nb"


@pytest.mark.parametrize("content_type", [None, "", "application/octet-stream", "text/plain", "garbage"])
def test_content_of_any_other_type_is_stored_as_it_comes(cluster: Cluster, content_type: str | None) -> None:
    upload = Upload(cluster)
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert upload.send("PUT", b"abcd", headers).status == 200
    assert upload.content() == b"abcd"


def test_curl_uploads_a_file_and_no_form(cluster: Cluster, tmp_path: Path) -> None:
    require_curl()
    small = tmp_path / "small.cfg"
    small.write_bytes(b"hostname r1")
    upload = Upload(cluster)
    form = cluster.curl("-X", "PUT", "-F", f"file=@{small}", upload.url)
    assert b"unsupported_media_type" in form.stdout
    assert b"available" in cluster.curl("-T", str(small), upload.url).stdout
    assert upload.content() == b"hostname r1"


def vm(cluster: Cluster, content: bytes) -> tuple[str, str]:
    """A new image of so many bytes: its file_uuid and upload_url."""
    fields = {"filename": "a.qcow2", "virt_type": "qemu", "format": "qcow2", "size_bytes": len(content)}
    answer = cluster.post("/vms", fields)
    assert answer.status == 201, answer.body
    return answer.json["file_uuid"], answer.json["upload_url"]


def found_by_md5(cluster: Cluster, content: bytes) -> list[str]:
    answer = cluster.get(f"/vms?md5={hashlib.md5(content).hexdigest()}")
    assert answer.status == 200, answer.body
    return [found["file_uuid"] for found in answer.json["vms"]]


@pytest.mark.parametrize("way", ["put", "pieces", "tus"])
def test_image_is_found_by_its_md5(cluster: Cluster, way: str) -> None:
    content = os.urandom(200_000)
    file_uuid, url = vm(cluster, content)
    half = len(content) // 2
    if way == "put":
        answer = cluster.request("PUT", url, content=content)
    elif way == "pieces":
        for start, piece in ((0, content[:half]), (half, content[half:])):
            span = f"bytes {start}-{start + len(piece) - 1}/{len(content)}"
            answer = cluster.request("PUT", url, content=piece, headers={"Content-Range": span})
    else:
        headers: dict[str, Any] = {**TUS, "Upload-Offset": "0"}
        wrong = headers | {"Upload-Checksum": checksum_of(b"x")}
        assert cluster.request("PATCH", url, content=content, headers=wrong).status == 460
        answer = cluster.request("PATCH", url, content=content, headers=headers)
    assert answer.status in (200, 204), answer.body
    assert found_by_md5(cluster, content) == [file_uuid]
    assert cluster.request("PUT", url, content=content).status == 200
    assert found_by_md5(cluster, content) == [file_uuid]


@pytest.mark.long
def test_image_that_was_whole_before_its_node_died_has_its_md5(own_cluster: Cluster) -> None:
    cluster, content = own_cluster, os.urandom(200_000)
    file_uuid, url = vm(cluster, content)
    holder = next(node for node in cluster.nodes if url.startswith(node.url))
    others = [node for node in cluster.nodes if node is not holder]
    cluster.kill(*others)  # the content becomes whole, and cannot be completed: too few copies
    assert cluster.request("PUT", url, content=content).status == 503
    cluster.kill(holder)
    cluster.restart(*cluster.nodes)
    cluster.wait_healthy()
    span = {"Content-Range": f"bytes */{len(content)}"}
    answer = cluster.request("PUT", url, content=b"", headers=span)
    while answer.status == 503:  # bounded by the test's own deadline
        answer = cluster.request("PUT", url, content=b"", headers=span)
    assert (answer.status, answer.json["status"]) == (200, "available")
    assert found_by_md5(cluster, content) == [file_uuid]
