"""Who may join a real cluster: a refused request is 401 or 400 and changes nothing."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ca.csr import new_csr
from ca.identity import Identity, Role
from ca.jointoken import JoinToken
from ca.keys import new_key
from deploy.processes import wait_until
from tests.cluster.harness import Answer, Cluster

PATH = "/cluster/join/filestore"
NEWCOMER = "newcomer"
ODD_URLS = ("[::1]:7441", "https://::1:7441", "https://[::1]:99999")


def body(cluster: Cluster, **changes: Any) -> dict[str, object]:
    name = cluster.get("/cluster/ca", token=None).json["cluster"]
    csr = new_csr(new_key(), Identity(name, Role.NODE, NEWCOMER), "127.0.0.1")
    return {"api_port": 19999, "csr": csr, "id": NEWCOMER, "ip_address": "127.0.0.1", **changes}


def bearer(token: str) -> str:
    return JoinToken.parse(token).bearer


@pytest.fixture(autouse=True)
def nothing_changes(cluster: Cluster) -> Iterator[None]:
    before = cluster.get("/cluster/nodes").json
    yield
    assert cluster.get("/cluster/nodes").json == before


def refused(answer: Answer) -> None:
    assert answer.status == 401
    assert (answer.json["code"], answer.json["error"]) == ("unauthorized", "Unauthorized")


@pytest.mark.parametrize("token", [None, "x", "a.b", "é.ü".encode().decode("latin-1")])
def test_absent_or_malformed_join_token_is_refused(cluster: Cluster, token: str | None) -> None:
    refused(cluster.post(PATH, stranger=True, body=body(cluster), token=token))


def test_unknown_join_token_and_wrong_secret_are_refused_alike(cluster: Cluster) -> None:
    token_id, secret = bearer(cluster.join_token()).split(".")
    wrong = ("A" if secret[0] != "A" else "B") + secret[1:]
    first = cluster.post(PATH, stranger=True, body=body(cluster), token=f"{token_id}.{wrong}")
    second = cluster.post(PATH, stranger=True, body=body(cluster), token=f"{token_id[::-1]}.{secret}")
    refused(first)
    refused(second)
    assert first.body == second.body


@pytest.mark.parametrize(
    "changes",
    [{"csr": "x"}, {"id": "N9"}, {"ip_address": "here"}, {"api_port": 0}, {"api_port": "1"}, {"more": 1}],
)
@pytest.mark.parametrize("role", ["node", "coordinator"])
def test_wrong_join_token_is_refused_whatever_else_is_wrong(
    cluster: Cluster, role: str, changes: dict[str, object]
) -> None:
    token_id, secret = bearer(cluster.join_token()).split(".")
    asked = body(cluster, **changes)
    member = cluster.nodes[0] if role == "node" else cluster.coordinators[0]
    refused(cluster.post(PATH, stranger=True, node=member, body=asked, token=f"{token_id}.{secret[::-1]}"))
    answer = cluster.post(PATH, stranger=True, node=member, body=asked, token=f"{token_id}.{secret}")
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")


def test_user_token_does_not_join_and_join_token_is_no_user_token(cluster: Cluster) -> None:
    refused(cluster.post(PATH, stranger=True, body=body(cluster), token=cluster.admin_token))
    refused(cluster.get("/project-files", stranger=True, token=bearer(cluster.join_token())))
    refused(cluster.get("/project-files", stranger=True, token=cluster.join_token()))


def test_expired_join_token_is_refused(cluster: Cluster) -> None:
    token, ends_at_s = cluster.short_lived_join_token
    wait_until(lambda: time.monotonic() > ends_at_s, what="the end of the token", timeout_s=70)
    refused(cluster.post(PATH, stranger=True, body=body(cluster), token=bearer(token)))


def test_join_token_for_another_node_is_refused(cluster: Cluster) -> None:
    token = cluster.join_token(node_id="somebody-else")
    refused(cluster.post(PATH, stranger=True, body=body(cluster), token=bearer(token)))


def test_taken_id_is_a_conflict_and_burns_no_token(cluster: Cluster) -> None:
    token = bearer(cluster.join_token())
    taken = cluster.nodes[0].id
    name = cluster.get("/cluster/ca", token=None).json["cluster"]
    csr = new_csr(new_key(), Identity(name, Role.NODE, taken), "127.0.0.1")
    for _ in range(2):
        answer = cluster.post(PATH, stranger=True, body=body(cluster, id=taken, csr=csr), token=token)
        assert (answer.status, answer.json["code"]) == (409, "conflict")


def test_place_of_another_node_is_a_conflict_and_burns_no_token(cluster: Cluster) -> None:
    token, taken = bearer(cluster.join_token()), cluster.nodes[0]
    for port in (taken.api_port, taken.peer_port):
        answer = cluster.post(PATH, stranger=True, body=body(cluster, api_port=port), token=token)
        assert (answer.status, answer.json["code"]) == (409, "conflict")
        assert f"The node {taken.id} has the address 127.0.0.1:{port}." in answer.json["details"]
    tokens = cluster.get("/cluster/join-tokens").json["join_tokens"]
    assert [each["uses"] for each in tokens if token.startswith(each["token_id"])] == [0]


@pytest.mark.parametrize(
    ("options", "mode", "words"),
    [
        (("--api-port", "7777", "--peer-port", "7777"), 0o700, "must differ from the port for clients, 7777"),
        ((), 0o777, "other users may write"),
    ],
)
def test_directory_or_ports_that_cannot_be_used_cost_no_token(
    cluster: Cluster, tmp_path: Path, options: tuple[str, ...], mode: int, words: str
) -> None:
    token_file = tmp_path / "join.token"
    token_file.write_text(cluster.join_token())
    data = tmp_path / "node"
    data.mkdir()
    data.chmod(mode)
    url = f"https://127.0.0.1:{cluster.coordinators[0].api_port}"
    where = ("--id", NEWCOMER, "--data", str(data), "--coordinator", url, "--address", "127.0.0.1", *options)
    done = cluster.filestore("node", "join", "--token-file", str(token_file), *where)
    assert done.returncode == 2
    assert words in done.stderr.decode()
    assert list(data.iterdir()) == []


def test_command_says_why_a_token_may_not_be_taken(cluster: Cluster, tmp_path: Path) -> None:
    """The answer is the same whatever the reason: who has the token is told what it may be."""
    token_file = tmp_path / "join.token"
    token_file.write_text(cluster.join_token(node_id="another"))
    url = f"https://127.0.0.1:{cluster.coordinators[0].api_port}"
    where = ("--data", str(tmp_path / "node"), "--coordinator", url, "--address", "127.0.0.1")
    done = cluster.filestore("node", "join", "--id", NEWCOMER, "--token-file", str(token_file), *where)
    assert done.returncode == 3
    assert done.stderr.startswith(b"filestore: unauthorized: The join token was rejected: ")
    assert b"is for another name" in done.stderr


def test_request_for_a_ca_certificate_is_refused(cluster: Cluster) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NEWCOMER)]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = csr.public_bytes(serialization.Encoding.PEM).decode()
    answer = cluster.post(
        PATH, stranger=True, body=body(cluster, csr=pem), token=bearer(cluster.join_token())
    )
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert "csr" in answer.json["details"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("api_port", 0),
        ("api_port", 65536),
        ("api_port", True),
        ("api_port", "443"),
        ("id", "Upper"),
        ("id", ""),
        ("id", "a/b"),
        ("ip_address", "local_host"),
        ("csr", "garbage"),
        ("csr", 5),
        ("surprise", 1),
    ],
)
def test_bad_field_is_named(cluster: Cluster, field: str, value: object) -> None:
    wrong = body(cluster) | {field: value}
    answer = cluster.post(PATH, stranger=True, body=wrong, token=bearer(cluster.join_token()))
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert field in answer.json["details"]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:7441", *(pytest.param(each, marks=pytest.mark.long) for each in ODD_URLS)]
)
def test_what_is_no_url_of_a_coordinator_is_told_as_such(cluster: Cluster, url: str) -> None:
    data = str(cluster.data(cluster.nodes[0]))
    done = cluster.filestore("node", "reconnect", "--data", data, "--coordinator", url)
    assert done.returncode == 2
    for words in ("invalid_request", url, "is not a URL such as https://HOST:PORT"):
        assert words in done.stderr.decode()
