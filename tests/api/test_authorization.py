"""Who may do what: every operation of the interface for every relation that a user can have to a file.

ROWS is the table. It says what an operation needs, and what whoever has that is answered; everybody else is
answered 403, a disabled user and who shows no credential 401. An operation without a row fails.
"""

import itertools
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from api.documentation import Documentation
from api.routes import METADATA
from api.spec.operation import Operation
from ca.certificates import new_root
from node.content.routes import OPERATIONS as CONTENT
from tests.api.expectations import DEFAULT_BUCKET, KINDS, NOBODY, grant
from tests.api.standings import ADMIN, DISABLED, STANDINGS, KeptConnections, Level, World
from tests.cluster.harness import Answer, Cluster

OPERATIONS: Final = {each.name: each for each in Documentation((*METADATA, *CONTENT)).operations}
PROJECT, VM, BACKUP, PENDING = "/project-files", "/vms", "/backups", "pending"
TUS: Final = {"Tus-Resumable": "1.0.0"}
TUS_PATCH: Final = TUS | {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
TUS_CREATION: Final = TUS | {"Upload-Length": "1", "Upload-Metadata": "filename bGFi,project_id bGFi"}
TUS_POST: Final = TUS_PATCH | {"X-HTTP-Method-Override": "PATCH"}
FOREIGN: Final = {
    "certificate": new_root("lab", now=datetime.now(UTC))[0],
    "wrapped_key": "eA==",
}
GRANT: Final = {"permission": "read", "principal_type": "user", "principal_id": "somebody"}
PARENT: Final = {"backup_type": "incremental", "parent_backup_uuid": "{file_uuid}"}


@dataclass(frozen=True, eq=False)
class Row:
    """`needs`: a level on the `on` (file, bucket), or "admin role", "user" (any), "nothing", "join token".

    `of`: the file that is asked for. `spoils`: the request changes it for good, so whoever is allowed gets
    one of its own. `refused`: the answer without the level. `{...}` in `body` and `query` are ids, as in
    paths.
    """

    name: str
    needs: Level | str
    answered: int
    on: str = "file"
    of: str = PROJECT
    body: Any = None
    query: str = ""
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    spoils: bool = False
    refused: int = 403

    def __str__(self) -> str:
        return self.name


READ, WRITE, ALL = Level.READ, Level.WRITE, Level.ADMIN
IN_BUCKET: Final = {"bucket_id": "{bucket_id}"}
ROWS: Final = (
    # ---- files of the three kinds: ids in paths, in bodies, in the query
    Row("create_project_file", "user", 201, body=KINDS[PROJECT]),
    Row("create_project_file", WRITE, 201, "bucket", body=KINDS[PROJECT] | IN_BUCKET),
    Row("create_project_file", "user", 201, headers=TUS_CREATION),
    Row("tus_options_project_files", "nothing", 204),
    Row("list_project_files", "user", 200),
    Row("get_project_file", READ, 200),
    Row("get_project_manifest", READ, 200),
    Row("update_project_file", WRITE, 200, body={"version_tag": "v"}),
    Row("delete_project_file", ALL, 200, spoils=True),
    Row("create_vm", "user", 201, body=KINDS[VM]),
    Row("create_vm", WRITE, 201, "bucket", body=KINDS[VM] | IN_BUCKET),
    Row("tus_options_vms", "nothing", 204),
    Row("list_vms", "user", 200),
    Row("get_vm", READ, 200, of=VM),
    Row("update_vm", WRITE, 200, of=VM, body={"vcpus": 2}),
    Row("delete_vm", ALL, 200, of=VM, spoils=True),
    Row("create_backup", "user", 201, body=KINDS[BACKUP]),
    Row("create_backup", WRITE, 201, "bucket", body=KINDS[BACKUP] | IN_BUCKET),
    Row("create_backup", READ, 201, of=BACKUP, body=KINDS[BACKUP] | PARENT),
    Row("tus_options_backups", "nothing", 204),
    Row("list_backups", "user", 200),
    Row("get_backup", READ, 200, of=BACKUP),
    Row("update_backup", WRITE, 200, of=BACKUP, body={"is_encrypted": True}),
    Row("delete_backup", ALL, 200, of=BACKUP, spoils=True),
    Row("delete_file", ALL, 200, spoils=True),
    Row("list_file_replicas", READ, 200),
    Row("protect_file", ALL, 200, body={"protect_days": 1}, spoils=True),
    # ---- the trash: this file is in none (test_trash.py says who may do what)
    Row("list_trash", "user", 200),
    Row("restore_file", "user", 404),
    Row("purge_file", "user", 404),
    # ---- content
    Row("download_file", READ, 200),
    Row("head_file", READ, 200),
    Row("file_chunks", READ, 200, refused=404),
    Row("upload_offset", WRITE, 200, of=PENDING),
    Row("put_content", WRITE, 200, of=PENDING, content=b"x", spoils=True),
    Row("tus_options", "nothing", 204, of=PENDING),
    Row("tus_head", WRITE, 200, of=PENDING, headers=TUS),
    Row("tus_patch", WRITE, 204, of=PENDING, content=b"x", headers=TUS_PATCH, spoils=True),
    Row("tus_delete", WRITE, 204, of=PENDING, headers=TUS, spoils=True),
    Row("tus_post", WRITE, 204, of=PENDING, content=b"x", headers=TUS_POST, spoils=True),
    Row("create_ticket", READ, 200),
    Row("download_ticket", "nothing", 404),
    Row("head_ticket", "nothing", 404),
    Row("download_public", "nothing", 404),
    Row("head_public", "nothing", 404),
    # ---- buckets
    Row("create_bucket", "user", 201, body={"name": "{unique}"}),
    Row("list_buckets", "user", 200),
    Row("get_bucket", READ, 200, "bucket"),
    Row("update_bucket", ALL, 200, "bucket", body={"quota_bytes": 10**9}),
    Row("delete_bucket", ALL, 409, "bucket"),
    Row("list_bucket_files", READ, 200, "bucket"),
    Row("list_folders", READ, 200, "bucket"),
    Row("list_bucket_uploads", READ, 200, "bucket"),
    # ---- permissions and public tokens
    Row("grant_bucket_permission", ALL, 201, "bucket", body=GRANT),
    Row("list_bucket_permissions", ALL, 200, "bucket"),
    Row("withdraw_bucket_permission", ALL, 200, "bucket", spoils=True),
    Row("grant_file_permission", ALL, 201, body=GRANT),
    Row("list_file_permissions", ALL, 200),
    Row("withdraw_file_permission", ALL, 200, spoils=True),
    Row("create_public_token", ALL, 201),
    Row("list_public_tokens", ALL, 200),
    Row("revoke_public_token", ALL, 200),
    Row("list_own_permissions", "user", 200),
    Row("list_own_public_tokens", "user", 200),
    # ---- users
    Row("mint_user_token", "admin role", 200),
    Row("renew_user_token", "user", 200),
    Row("rotate_token_key", "admin role", 201, body={"grace_seconds": 86400}),
    Row("list_users", "admin role", 200),
    Row("get_user", "admin role", 200),
    Row("put_user", "admin role", 200, body={"groups": ["g"]}),
    Row("delete_user", "admin role", 200),
    Row("revoke_user", "admin role", 200, body={"user_id": "{user_id}"}),
    Row("revoke_user", "admin role", 200, query="?user_id={user_id}"),
    Row("whoami", "user", 200),
    Row("key_set", "nothing", 200),
    Row("list_sessions", "admin role", 200),
    Row("end_session", "admin role", 404),
    Row("end_sessions", "admin role", 200),
    Row("invite_user", "admin role", 201),
    Row("revoke_invitation", "admin role", 404),
    Row("list_invitations", "admin role", 200),
    Row("redeem_invitation", "nothing", 404, body={"token": "no-such-token"}),
    # ---- sign-in
    Row("list_providers", "nothing", 200),
    Row("get_provider", "admin role", 404),
    Row("put_provider", "admin role", 400),
    Row("delete_provider", "admin role", 404),
    Row("test_provider", "admin role", 404),
    Row("start_sign_in", "nothing", 404, body={"flow": "device"}),
    Row("finish_sign_in", "nothing", 404, body={"attempt": "a", "state": "s"}),
    Row("renew_sign_in", "nothing", 404, body={"renewal": "r"}),
    Row("end_sign_in", "nothing", 404, body={"renewal": "r"}),
    # ---- groups
    Row("list_groups", "admin role", 200),
    Row("get_group", "admin role", 404),
    Row("put_group", "admin role", 200),
    Row("delete_group", "admin role", 404),
    Row("list_group_members", "admin role", 404),
    Row("add_group_members", "admin role", 404, body={"user_ids": ["no-such-user"]}),
    Row("remove_group_member", "admin role", 404),
    Row("list_group_permissions", "admin role", 200),
    Row("list_audit_entries", "admin role", 200),
    Row("show_work", "admin role", 200),
    # ---- jobs
    Row("list_jobs", "admin role", 200),
    Row("list_job_runs", "admin role", 200),
    Row("get_job_run", "admin role", 404),
    Row("cancel_job_run", "admin role", 404),
    Row("trigger_job", "admin role", 202),
    # ---- the cluster
    Row("join_node", "join token", 200),
    Row("join_coordinator", "join token", 200),
    Row("get_authority", "nothing", 200),
    Row("get_scrape_targets", "nothing", 200),
    Row("add_intermediate", "admin role", 400, body=FOREIGN),
    Row("create_join_token", "admin role", 201),
    Row("list_join_tokens", "admin role", 200),
    Row("delete_join_token", "admin role", 404),
    Row("list_nodes", "admin role", 200),
    Row("get_node", "admin role", 200),
    Row("move_node", "admin role", 404, body={"address": "127.0.0.1"}),
    Row("drain_node", "admin role", 404),
    Row("stop_draining_node", "admin role", 404),
    Row("revoke_node", "admin role", 404),
    Row("forget_node_instance", "admin role", 404),
    Row("remove_node", "admin role", 404),
    Row("get_cluster_status", "admin role", 200),
    Row("list_damaged", "admin role", 200),
    Row("list_snapshots", "admin role", 200),
    Row("list_snapshot_files", "admin role", 404),
    Row("restore_snapshot_file", "admin role", 404),
    Row("add_coordinator", "admin role", 201, body={"id": "{coordinator}"}),
    Row("remove_coordinator", "admin role", 404),
    Row("transfer_leader", "admin role", 200, body={"id": "{leader}"}),
    # ---- without a credential
    Row("is_alive", "nothing", 200),
    Row("is_ready", "nothing", 200),
    Row("get_metrics", "nothing", 200),
    Row("get_openapi", "nothing", 200),
    Row("get_docs", "nothing", 200),
    Row("get_docs_part", "nothing", 200),
)
TELLING: Final = {
    "create_public_token",
    "mint_user_token",
    "renew_user_token",
    "create_join_token",
    "invite_user",
}
NOBODYS: Final = {
    "move_node",
    "drain_node",
    "stop_draining_node",
    "revoke_node",
    "forget_node_instance",
    "remove_node",
    "remove_coordinator",
}


class Matrix:
    """The world with what is asked for. Those who are refused share it; what is spoiled is one's own."""

    def __init__(self, cluster: Cluster, connections: KeptConnections) -> None:
        self.cluster = cluster
        self.world = World(cluster)
        self._connections = connections
        self._nodes = itertools.cycle(cluster.nodes)
        with self.world.creating():
            self._shared = {
                of: self._file(of, content=of != PENDING) for of in (PROJECT, VM, BACKUP, PENDING)
            }
            self._own = {
                (row, standing): self._file(row.of, content=False, standing=standing)
                for row, standing in itertools.product(ROWS, STANDINGS)
                if row.on == "file" and is_spoiled(row, standing)
            }
        self.world.wait_until_expired(self._shared[PENDING])

    def ask(self, row: Row, standing: str) -> Answer:
        """The answer to a user of this standing; "" for nobody."""
        operation = OPERATIONS[row.name]
        ids = Filled(self._ids(row, standing))
        path = operation.path.format_map(ids) + row.query.format_map(ids)
        token = self.world.people[standing].token if standing else None
        body, node = self._body(row, ids), next(self._nodes)
        if standing and expected(row, standing) == 401:  # failures are counted by address
            return self.cluster.request(
                operation.method,
                node.url + path,
                token=token,
                body=body,
                content=row.content,
                headers=row.headers,
                stranger=True,
            )
        return self._connections.request(
            node, operation.method, path, token=token, body=body, content=row.content, headers=row.headers
        )

    def _file(self, of: str, *, content: bool, standing: str = "") -> str:
        return self.world.file(PROJECT if of == PENDING else of, content=content, standing=standing)

    def _ids(self, row: Row, standing: str) -> dict[str, str]:
        """What paths and bodies name."""
        file_uuid = self._own.get((row, standing), self._shared[row.of])
        node_id = "no-such-node" if row.name in NOBODYS else self.cluster.nodes[0].id
        ids = {"file_uuid": file_uuid, "bucket_id": self.world.bucket_id, "id": node_id}
        ids |= {"run_id": NOBODY, "perm_id": NOBODY, "token_id": "abcdefgh", "job_name": "snapshot"}
        ids |= {"bucket_uuid": DEFAULT_BUCKET, "token": "no-such-token", "file": "start.js"}
        ids |= {"ticket": "no-such-ticket", "snapshot_id": "no-such-snapshot"}
        ids["provider"] = "no-such-provider"
        ids["unique"] = ids["group"] = ids["session_id"] = uuid.uuid4().hex
        if "{user_id}" in OPERATIONS[row.name].path + str(row.body) + row.query:
            ids["user_id"] = f"asked-{uuid.uuid4().hex[:12]}"
            self.cluster.user_token(ids["user_id"])
        if is_spoiled(row, standing) and "{perm_id}" in OPERATIONS[row.name].path:
            place = f"/files/{file_uuid}" if row.on == "file" else f"/buckets/{self.world.bucket_id}"
            ids["perm_id"] = grant(self.cluster, place, "read", uuid.uuid4().hex)
        if row.name == "revoke_public_token":
            shared = self.cluster.post(f"/files/{file_uuid}/public-token")
            self.cluster.remember(shared.json["token"])
            ids["id"] = shared.headers["location"].rsplit("/", 1)[1]
        return ids

    def _body(self, row: Row, ids: Mapping[str, str]) -> Any:
        if row.name == "add_coordinator":  # one that is there already, which changes nothing
            known = self.cluster.get("/cluster/ca").json["coordinators"][0]
            return {"id": known.pop("coordinator_id")} | known
        if row.name == "transfer_leader":  # to who leads, which changes nothing
            return {"id": self.cluster.leader().id}
        if not isinstance(row.body, dict):
            return row.body
        return {
            name: value.format_map(ids) if isinstance(value, str) else value
            for name, value in row.body.items()
        }


class Filled(dict[str, str]):
    """Ids by name; a name that is not there fails the test instead of the request."""

    def __missing__(self, name: str) -> str:
        raise AssertionError(f"no id for {{{name}}}")


def expected(row: Row, standing: str) -> int:
    """What the table says that a user of this standing ("" for nobody) is answered."""
    if row.needs == "nothing":
        return row.answered
    if not standing or standing == DISABLED or row.needs == "join token":
        return 401
    if isinstance(row.needs, Level):
        held = STANDINGS[standing].on_file if row.on == "file" else STANDINGS[standing].on_bucket
        return row.answered if held >= row.needs else row.refused
    return row.answered if row.needs == "user" or standing == ADMIN else 403


def is_spoiled(row: Row, standing: str) -> bool:
    """Whether what is asked for is changed for good."""
    return row.spoils and expected(row, standing) == row.answered


def columns(row: Row) -> Iterator[str]:
    """The standings that a row is tried with: all of them, where they can make a difference."""
    few = {"owner of the file", "owner of the bucket", "user, admin on the bucket", ADMIN, DISABLED, "none"}
    yield from (name for name in STANDINGS if isinstance(row.needs, Level) or name in few)
    yield ""


@pytest.fixture(scope="module")
def matrix(cluster: Cluster) -> Iterator[Matrix]:
    """Made once for the whole table."""
    connections = KeptConnections(cluster)
    yield Matrix(cluster, connections)
    connections.close()


def test_table_has_every_operation_of_the_interface() -> None:
    assert {row.name for row in ROWS} == set(OPERATIONS)


def test_table_needs_what_the_documentation_says() -> None:
    credentials = {"nothing": "none", "join token": "join token"}
    for row in ROWS:
        operation: Operation = OPERATIONS[row.name]
        assert operation.credential == credentials.get(str(row.needs), "user"), row.name
        statuses = {*operation.answers, *(error.status for error in operation.all_errors)}
        for standing in columns(row):
            assert expected(row, standing) in statuses, (row.name, standing)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_operation_is_for_those_whom_the_table_names(matrix: Matrix, row: Row) -> None:
    faults = []
    for standing in columns(row):
        answer = matrix.ask(row, standing)
        if row.name in TELLING and answer.status < 300:
            matrix.cluster.remember(answer.json["token"])
        if row.name == "create_ticket" and answer.status < 300:
            matrix.cluster.remember(answer.json["url"].rpartition("/")[2])
        if answer.status != expected(row, standing):
            faults.append(f"{standing or 'nobody'}: {answer.status}, not {expected(row, standing)}")
    assert not faults, f"{row.name}: " + "; ".join(faults)
