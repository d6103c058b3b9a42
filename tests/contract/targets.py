"""Real records for generated requests to aim at: random ids alone would only ever meet 404."""

import base64
import json
from collections.abc import Callable
from typing import Any

from tests.cluster.harness import Cluster

CONTENT = b"0123456789" * 100
IMAGE = {"virt_type": "qemu", "format": "qcow2"}
KINDS: dict[str, dict[str, Any]] = {
    "project-files": {"project_id": "contract"},
    "vms": IMAGE,
    "backups": {"backup_type": "full"},
}


class Targets:
    """Records of one user, `owner`. What a request may destroy is made anew for each."""

    def __init__(self, cluster: Cluster, owner: str, token: str) -> None:
        self._cluster = cluster
        self._owner, self._token = owner, token
        self._made: dict[str, str] = {}
        self._others = 0

    def path_parameters(self, path: str, method: str) -> dict[str, str]:
        """Values for the parameters of a path that lead to something."""
        destroys = method == "DELETE"
        found: dict[str, str] = {}
        if "{file_uuid}" in path:
            found["file_uuid"] = self._file(path, destroys=destroys)
        if "{bucket_id}" in path:
            is_spoilt = method in ("PATCH", "DELETE") and path.endswith("{bucket_id}")  # by a quota, say
            found["bucket_id"] = self._bucket(is_new=is_spoilt)
        if "{perm_id}" in path:
            parent = path.removesuffix("/{perm_id}").format(**found)
            body = {"permission": "read", "principal_type": "user", "principal_id": "contract-guest"}
            found["perm_id"] = self._create(parent, body)["id"]
        if "/public-tokens/{id}" in path:
            parent = path.removesuffix("s/{id}").format(**found)
            self._create(parent, {})
            found["id"] = self._get(f"{parent}s")["public_tokens"][-1]["id"]
        if "{bucket_uuid}" in path:
            found |= self._public_link()
        if "{ticket}" in path:
            found["ticket"] = self._ticket()
        simple: dict[str, Callable[[], str]] = {
            "{user_id}": self._user,
            "{run_id}": self._run,
            "{job_name}": lambda: "expire",
            "{token_id}": lambda: str(self._cluster.post("/cluster/join-tokens", {}).json["token_id"]),
            "/docs/{file}": lambda: "start.js",
            "{group}": self._group,
            "{provider}": lambda: "none",  # nobody answers for one here
            "{session_id}": lambda: "none",  # one's own would end
            "{snapshot_id}": lambda: "none",  # a new cluster has none
        }
        for part, make in simple.items():
            if part in path:
                found[part.rpartition("{")[2].strip("}")] = make()
        if path.endswith("/cluster/nodes/{id}") and not destroys:
            found["id"] = self._cluster.nodes[0].id
        return found

    def body(self, operation: str, body: Any) -> Any:
        """A generated body, with references that lead to something; no body may name a user of others."""
        if not isinstance(body, dict):
            return body
        changed = dict(body)
        if operation == "revoke_user" and isinstance(body.get("user_id"), str):
            changed["user_id"] = self._user()
        if operation.startswith("create_") and body.get("bucket_id"):
            changed["bucket_id"] = self._bucket(is_new=False)
        if body.get("parent_backup_uuid"):
            changed["parent_backup_uuid"] = self._once(
                "parent", lambda: self._new_file("backups", stored=True)
            )
        return changed

    def creation_headers(self, path: str, content: Any) -> dict[str, str]:
        """What lets a creation with these bytes be one by tus, with no digest that they do not have."""
        fields = {"filename": "contract.bin", **KINDS[path.rpartition("/")[2]]}
        pairs = (f"{name} {base64.b64encode(text.encode()).decode()}" for name, text in fields.items())
        size_bytes = len(content) if isinstance(content, bytes) else 0
        return {
            "Tus-Resumable": "1.0.0",
            "Upload-Length": str(size_bytes + self._others % 2),  # all of them, or the first
            "Upload-Metadata": ",".join(pairs),
        }

    def _once(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _file(self, path: str, *, destroys: bool) -> str:
        kind = next((kind for kind in KINDS if f"/{kind}/" in path), "project-files")
        is_upload = path.endswith("/content")
        if is_upload or (destroys and path.endswith("{file_uuid}")):
            return self._new_file(kind, stored=False)
        return self._once(kind, lambda: self._new_file(kind, stored=True))

    def _new_file(self, kind: str, *, stored: bool) -> str:
        fields = {"filename": "contract.bin", "bucket_id": self._bucket(is_new=False), **KINDS[kind]}
        created = self._create(f"/api/v1/{kind}", fields)
        if stored:
            url = created["upload_url"]
            answer = self._cluster.request("PUT", url, content=CONTENT, token=self._token)
            assert answer.status == 200, answer.body
        return str(created["file_uuid"])

    def _bucket(self, *, is_new: bool) -> str:
        def make() -> str:
            self._others += 1
            return str(
                self._create("/api/v1/buckets", {"name": f"{self._owner}-{self._others}"})["bucket_id"]
            )

        return make() if is_new else self._once("bucket", make)

    def _user(self) -> str:
        """Always one that nobody else needs."""
        self._others += 1
        user_id = f"{self._owner}-{self._others % 4}"
        assert self._cluster.request("PUT", f"/auth/users/{user_id}", body={}).status in (200, 201)
        return user_id

    def _group(self) -> str:
        group = f"{self._owner}-group"
        assert self._cluster.request("PUT", f"/groups/{group}", body={}).status in (200, 201)
        return group

    def _run(self) -> str:
        def make() -> str:
            answer = self._cluster.post("/jobs/expire", {})
            if answer.status == 409:
                return str(self._cluster.get("/jobs/runs").json["runs"][-1]["run_id"])
            assert answer.status == 202, answer.body
            return str(answer.json["run_id"])

        return self._once("run", make)

    def _public_link(self) -> dict[str, str]:
        def make() -> str:
            file_uuid = self._once("project-files", lambda: self._new_file("project-files", stored=True))
            made = self._create(f"/api/v1/files/{file_uuid}/public-token", {})
            self._cluster.remember(made["token"])
            return json.dumps({"bucket_uuid": made["bucket_uuid"], "token": made["token"]})

        link: dict[str, str] = json.loads(self._once("link", make))
        return link

    def _ticket(self) -> str:
        def make() -> str:
            file_uuid = self._once("project-files", lambda: self._new_file("project-files", stored=True))
            body = {"ttl_seconds": 3600}
            made = self._cluster.post(f"/api/v1/files/{file_uuid}/ticket", body, token=self._token)
            assert made.status == 200, made.body
            return self._cluster.remember(str(made.json["url"]).rpartition("/")[2])

        return self._once("ticket", make)

    def _create(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._cluster.post(path, body, token=self._token)
        assert answer.status == 201, (path, answer.status, answer.body)
        return answer.json

    def _get(self, path: str) -> Any:
        return self._cluster.get(path, token=self._token).json
