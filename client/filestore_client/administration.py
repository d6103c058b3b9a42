"""Buckets, permissions, links, users, tokens, jobs and the members of a cluster.

Tested by tests/cluster/test_client_records.py.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from unicodedata import normalize

import msgspec

from filestore_client.base.pages import check_filters, pages, with_query
from filestore_client.base.paths import path_part
from filestore_client.base.records import (
    AuditEntry,
    Bucket,
    BucketUpload,
    Coordinator,
    Grant,
    Job,
    JobRun,
    JoinToken,
    ListedShare,
    MintedJoinToken,
    MintedToken,
    Node,
    Permission,
    PrincipalType,
    RemovedNode,
    RevokedNode,
    RotatedKey,
    Share,
    TriggeredRun,
    User,
)
from filestore_client.base.transport import Transport

JOB_LOOK_S = 0.5


class Resource:
    """Operations of one part of the API."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class Buckets(Resource):
    """Buckets."""

    def list(self) -> AsyncIterator[Bucket]:
        """Every bucket that the caller may see."""
        return pages(self._transport, "/api/v1/buckets", "buckets", Bucket)

    async def create(self, name: str, *, quota_bytes: int = 0) -> Bucket:
        """Create a bucket. `quota_bytes` 0: no limit. Raises Conflict if the name is in use."""
        body = {"name": name, "quota_bytes": quota_bytes}
        return await self._transport.call("POST", "/api/v1/buckets", Bucket, body=body)

    async def get(self, bucket_id: str) -> Bucket:
        """One bucket, with its `etag`."""
        return await self._record("GET", bucket_id)

    async def find(self, name: str) -> Bucket | None:
        """The bucket of this name that the caller may see; None when there is none."""
        wanted = normalize("NFC", name)  # macOS writes é as two letters, others as one
        async for bucket in self.list():
            if normalize("NFC", bucket.name) == wanted:
                return bucket
        return None

    async def update(
        self, bucket_id: str, *, name: str | None = None, quota_bytes: int | None = None, if_match: str = ""
    ) -> Bucket:
        """Change the name or the quota. `if_match`: its expected `etag`.

        Raises PreconditionFailed, Conflict if the name is in use.
        """
        body = given(name=name, quota_bytes=quota_bytes)
        headers = {"If-Match": if_match} if if_match else {}
        return await self._record("PATCH", bucket_id, body=body, headers=headers)

    def uploads(self, bucket_id: str) -> AsyncIterator[BucketUpload]:
        """Every unfinished upload in a bucket, for its admins; for others their own.

        `files.delete` ends one.
        """
        return pages(self._transport, f"{_bucket(bucket_id)}/uploads", "uploads", BucketUpload)

    async def delete(self, bucket_id: str) -> None:
        """Delete an empty bucket. Raises Conflict for one that has files."""
        await self._transport.delete(_bucket(bucket_id))

    async def _record(self, method: str, bucket_id: str, **request: Any) -> Bucket:
        path = _bucket(bucket_id)
        answer, headers = await self._transport.answer(method, path, **request)
        bucket = self._transport.decode(answer, Bucket, path)
        return msgspec.structs.replace(bucket, etag=headers.get("ETag", ""))


class Grants(Resource):
    """Permissions on buckets and files."""

    def list(self, *, bucket_id: str = "", file_uuid: str = "") -> AsyncIterator[Grant]:
        """Every permission on a bucket or a file.

        Without either: what the caller has, gave, or that is on what it owns; for admins all.
        """
        path = _granted_on(bucket_id, file_uuid) if bucket_id or file_uuid else "/api/v1/permissions"
        return pages(self._transport, path, "permissions", Grant)

    async def add(
        self,
        principal_id: str,
        permission: Permission,
        *,
        bucket_id: str = "",
        file_uuid: str = "",
        principal_type: PrincipalType = "user",
        expires_at: str = "",
        ttl_seconds: int | None = None,
        existing: bool = False,
    ) -> Grant:
        """Give a permission on a bucket or a file. The same again only changes when it ends.

        It ends at `expires_at` (RFC 3339), `ttl_seconds` from now by the cluster's clock, or never. If
        `existing`, raises NotFound for a user who does not exist, or a group or role that no user has.
        """
        body = given(
            principal_id=principal_id,
            permission=permission,
            principal_type=principal_type,
            expires_at=expires_at or None,
            ttl_seconds=ttl_seconds,
        )
        path = _existing(_granted_on(bucket_id, file_uuid), existing)
        return await self._transport.call("POST", path, Grant, body=body, repeats=True)

    async def withdraw(self, grant_id: str, *, bucket_id: str = "", file_uuid: str = "") -> None:
        """Take a permission back."""
        await self._transport.delete(f"{_granted_on(bucket_id, file_uuid)}/{path_part(grant_id)}")


class Shares(Resource):
    """Public links to files."""

    def list(self, file_uuid: str = "") -> AsyncIterator[ListedShare]:
        """Every link to a file, without their secrets.

        Without a file: those that the caller made, or that are on its files; for admins all.
        """
        path = f"/api/v1/files/{path_part(file_uuid)}/public-tokens" if file_uuid else "/api/v1/public-tokens"
        return pages(self._transport, path, "public_tokens", ListedShare)

    async def create(self, file_uuid: str, *, expires_at: str = "", ttl_seconds: int | None = None) -> Share:
        """Return a new public link to the file.

        It ends at `expires_at` (RFC 3339), `ttl_seconds` from now by the cluster's clock, or in 24 hours.
        """
        path = f"/api/v1/files/{path_part(file_uuid)}/public-token"
        body = given(expires_at=expires_at or None, ttl_seconds=ttl_seconds)
        return await self._transport.call("POST", path, Share, body=body)

    async def revoke(self, file_uuid: str, share_id: str) -> None:
        """End a link."""
        await self._transport.delete(
            f"/api/v1/files/{path_part(file_uuid)}/public-tokens/{path_part(share_id)}"
        )


class Users(Resource):
    """Users and their tokens. Of others for admins only."""

    def list(self) -> AsyncIterator[User]:
        """Every user."""
        return pages(self._transport, "/api/v1/auth/users", "users", User)

    async def whoami(self) -> User:
        """Return the user of the client's token."""
        return await self._transport.call("GET", "/api/v1/auth/whoami", User)

    async def get(self, user_id: str) -> User:
        """One user."""
        return await self._transport.call("GET", _user(user_id), User)

    async def put(
        self,
        user_id: str,
        *,
        roles: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        disabled: bool | None = None,
        existing: bool = False,
    ) -> User:
        """Create a user, or change one; fields that are None stay unchanged.

        If `existing`, raises NotFound instead of creating a user.
        """
        body = given(roles=roles, groups=groups, disabled=disabled)
        return await self._transport.call("PUT", _existing(_user(user_id), existing), User, body=body)

    async def delete(self, user_id: str) -> None:
        """Delete a user."""
        await self._transport.delete(_user(user_id))

    async def revoke(self, user_id: str) -> None:
        """End all tokens, permissions and links of a user."""
        await self._transport.answer("POST", "/api/v1/auth/revoke", body={"user_id": user_id}, repeats=True)

    async def mint_token(
        self,
        user_id: str,
        *,
        roles: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        ttl_seconds: int | None = None,
        existing: bool = False,
    ) -> MintedToken:
        """A token for a user, who is created if unknown. None leaves roles and groups alone.

        If `existing`, raises NotFound instead of creating a user.
        """
        body = given(roles=roles, groups=groups, ttl_seconds=ttl_seconds)
        # A token is not recorded anywhere, so a lost one cannot be used by anyone.
        path = _existing(f"{_user(user_id)}/token", existing)
        return await self._transport.call("POST", path, MintedToken, body=body, repeats=True)

    async def renew_token(self, *, ttl_seconds: int | None = None) -> MintedToken:
        """Create a new token for the caller. The present one stays valid until it expires."""
        body = given(ttl_seconds=ttl_seconds)
        return await self._transport.call("POST", "/api/v1/auth/token", MintedToken, body=body, repeats=True)

    async def rotate_key(self, *, grace_seconds: int | None = None) -> RotatedKey:
        """A new key signs tokens from now on; tokens of the old ones end after the grace time."""
        body = given(grace_seconds=grace_seconds)
        return await self._transport.call("POST", "/api/v1/auth/keys", RotatedKey, body=body)


class JoinTokens(Resource):
    """Tokens with which machines join as nodes. Admins only."""

    def list(self) -> AsyncIterator[JoinToken]:
        """List the join tokens, without their secrets."""
        return pages(self._transport, "/api/v1/cluster/join-tokens", "join_tokens", JoinToken)

    async def create(
        self, *, node_id: str = "", ttl_seconds: int | None = None, max_uses: int | None = None
    ) -> MintedJoinToken:
        """Mint one; its secret is shown this once."""
        body = given(node_id=node_id or None, ttl_seconds=ttl_seconds, max_uses=max_uses)
        # A token whose response was lost cannot be used: its secret is only in that response.
        path = "/api/v1/cluster/join-tokens"
        return await self._transport.call("POST", path, MintedJoinToken, body=body, repeats=True)

    async def delete(self, token_id: str) -> None:
        """End one."""
        await self._transport.delete(f"/api/v1/cluster/join-tokens/{path_part(token_id)}")


class Jobs(Resource):
    """Jobs and their runs."""

    def list(self) -> AsyncIterator[Job]:
        """Every job, with its last run."""
        return pages(self._transport, "/api/v1/jobs", "jobs", Job)

    def runs(self, *, job_name: str = "") -> AsyncIterator[JobRun]:
        """Runs of one job or of all, newest first."""
        return pages(self._transport, "/api/v1/jobs/runs", "runs", JobRun, job_name=job_name)

    async def run(self, run_id: str) -> JobRun:
        """One run."""
        return await self._transport.call("GET", f"/api/v1/jobs/runs/{path_part(run_id)}", JobRun)

    async def trigger(self, /, job_name: str, **parameters: object) -> TriggeredRun:
        """Ask for a run. `parameters`: `node_id`, `yes_really`, `grace_s`, as far as the job takes them."""
        path = f"/api/v1/jobs/{path_part(job_name)}"
        return await self._transport.call("POST", path, TriggeredRun, body=given(**parameters))

    async def cancel(self, run_id: str) -> JobRun:
        """Ask a run to stop."""
        return await self._transport.call("DELETE", f"/api/v1/jobs/runs/{path_part(run_id)}", JobRun)

    async def wait(self, run_id: str, *, timeout_s: float | None = None) -> JobRun:
        """The run once it has ended. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                found = await self.run(run_id)
                if found.completed_at:
                    return found
                await asyncio.sleep(JOB_LOOK_S)


class Nodes(Resource):
    """The nodes of the cluster. Admins only."""

    def list(self) -> AsyncIterator[Node]:
        """Every node."""
        return pages(self._transport, "/api/v1/cluster/nodes", "nodes", Node)

    async def get(self, node_id: str) -> Node:
        """One node."""
        return await self._transport.call("GET", _node(node_id), Node)

    async def drain(self, node_id: str, *, force: bool = False) -> Node:
        """Move everything off the node."""
        path = with_query(f"{_node(node_id)}/drain", force=force or None)
        return await self._transport.call("POST", path, Node, repeats=True)

    async def stop_draining(self, node_id: str) -> Node:
        """The node takes replicas again."""
        return await self._transport.call("DELETE", f"{_node(node_id)}/drain", Node)

    async def remove(
        self, node_id: str, *, force: bool = False, give_up: bool = False, is_gone: bool = False
    ) -> RemovedNode:
        """Remove a node for good."""
        path = with_query(
            _node(node_id), force=force or None, give_up=give_up or None, is_gone=is_gone or None
        )
        return await self._transport.call("DELETE", path, RemovedNode)

    async def revoke(self, node_id: str) -> RevokedNode:
        """Revoke the certificate and end the connections of a node at once, in any state."""
        return await self._transport.call("POST", f"{_node(node_id)}/revoke", RevokedNode, repeats=True)


class Cluster(Resource):
    """The cluster as a whole."""

    async def status(self) -> dict[str, Any]:
        """How it is, as its coordinators see it. Admins only."""
        return await self._transport.call("GET", "/api/v1/cluster/status", dict[str, Any])

    def damaged(self) -> AsyncIterator[dict[str, Any]]:
        """Content that no node has whole. Admins only."""
        return pages(self._transport, "/api/v1/cluster/damaged", "contents", dict[str, Any])

    async def add_coordinator(
        self, coordinator_id: str, *, address: str, peer_port: int, api_port: int
    ) -> Coordinator:
        """A coordinator that runs joins the group; the same again changes nothing. Admins only."""
        body = {"id": coordinator_id, "address": address, "peer_port": peer_port, "api_port": api_port}
        path = "/api/v1/cluster/coordinators"
        return await self._transport.call("POST", path, Coordinator, body=body, repeats=True)

    async def remove_coordinator(self, coordinator_id: str) -> None:
        """A coordinator leaves the group. Admins only."""
        await self._transport.delete(f"/api/v1/cluster/coordinators/{path_part(coordinator_id)}")


class Audit(Resource):
    """The audit log: who did what. Admins only."""

    def list(self, /, **filters: str) -> AsyncIterator[AuditEntry]:
        """List the entries of the member that answers, newest first.

        `filters`: `principal`, `target` (a file's uuid), `action`, `since` and `until` (RFC 3339), or
        `since_seconds`: how long ago, by the member's clock.
        """
        check_filters(["audit"], filters)
        return pages(self._transport, "/api/v1/audit", "entries", AuditEntry, **filters)


def given(**fields: object) -> dict[str, object]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _existing(path: str, existing: bool) -> str:
    """The path of a change, which if `existing` must not create what it names."""
    return with_query(path, existing=existing or None)


def _bucket(bucket_id: str) -> str:
    return f"/api/v1/buckets/{path_part(bucket_id)}"


def _user(user_id: str) -> str:
    return f"/api/v1/auth/users/{path_part(user_id)}"


def _node(node_id: str) -> str:
    return f"/api/v1/cluster/nodes/{path_part(node_id)}"


def _granted_on(bucket_id: str, file_uuid: str) -> str:
    if bool(bucket_id) == bool(file_uuid):
        raise TypeError("give either bucket_id or file_uuid")
    return f"{_bucket(bucket_id) if bucket_id else f'/api/v1/files/{path_part(file_uuid)}'}/permissions"
