"""Commands about who may do what: users, buckets, permissions, public tokens."""

from typing import Literal

from msgspec import UNSET, UnsetType

from metadata.model.records import Caller
from metadata.model.rules import ENDS_ARE_COUNTED, REPLICAS_TURN_COLD
from metadata.protocol.commands.root import NODES, Command
from runtime.bounds import Count, Instant, LifeSeconds, Names, Text

Target = Literal["bucket", "file"]
PermissionName = Literal["read", "write", "admin"]
PrincipalType = Literal["user", "group", "role"]
BucketStorage = Literal["auto", "hot", "cold"]


class AdmitUser(Command, frozen=True, kw_only=True, tag="admit_user"):
    """Before a token is minted: create the user or update its roles and groups (None leaves them).

    Admin only. A conflict when the user is disabled.
    """

    caller: Caller
    user_id: Text
    roles: Names | None
    groups: Names | None


class PutUser(Command, frozen=True, kw_only=True, tag="put_user"):
    """Create a user or change it; None leaves a field as it is. Admin only. Replies with the UserRecord.

    A conflict when the caller would lock itself out: disable itself, or drop its own role admin.
    """

    proposed_by = NODES
    caller: Caller
    user_id: Text
    roles: Names | None
    groups: Names | None
    disabled: bool | None


class DeleteUser(Command, frozen=True, kw_only=True, tag="delete_user"):
    """Its tokens die, its permissions and public tokens end. Admin only.

    A conflict while it owns files or buckets, and for the caller itself.
    """

    proposed_by = NODES
    caller: Caller
    user_id: Text


class RevokeUser(Command, frozen=True, kw_only=True, tag="revoke_user"):
    """Every permission of the user goes, its tokens die, its public tokens end: one change. Admin only."""

    proposed_by = NODES
    caller: Caller
    user_id: Text


class CreateBucket(Command, frozen=True, kw_only=True, tag="create_bucket"):
    """Create a bucket; any user may. `quota_bytes` 0 means no quota. A name in use is a conflict.

    Replies with the BucketRecord.
    """

    proposed_by = NODES
    caller: Caller
    bucket_id: Text
    name: Text
    quota_bytes: Count


class UpdateBucket(Command, frozen=True, kw_only=True, tag="update_bucket"):
    """Needs admin on the bucket. None leaves a field as it is. Replies with the BucketRecord.

    `storage`: the form of its replicas (docs/cold.md). `unchanged_since_ms`: as in `UpdateFile`.
    """

    fields_since = {"storage": REPLICAS_TURN_COLD}
    proposed_by = NODES
    caller: Caller
    bucket_id: Text
    name: Text | None
    quota_bytes: Count | None
    storage: BucketStorage | UnsetType = UNSET
    unchanged_since_ms: Instant | UnsetType = UNSET


class DeleteBucket(Command, frozen=True, kw_only=True, tag="delete_bucket"):
    """Needs admin on the bucket. A conflict while it holds files, and for the default bucket.

    `unchanged_since_ms`: as in `UpdateFile`.
    """

    proposed_by = NODES
    caller: Caller
    bucket_id: Text
    unchanged_since_ms: Instant | UnsetType = UNSET


class GrantPermission(Command, frozen=True, kw_only=True, tag="grant_permission"):
    """Needs admin on the bucket or file. Replies with the PermissionRecord.

    The same principal and level again keep the entry and its id; the new expiry holds (None never ends).
    `ttl_seconds`, instead of `expires_at_ms`, counts from the leader's time.
    """

    fields_since = {"ttl_seconds": ENDS_ARE_COUNTED}
    proposed_by = NODES
    caller: Caller
    target: Target
    target_id: Text
    permission_id: Text
    permission: PermissionName
    principal_type: PrincipalType
    principal_id: Text
    expires_at_ms: Instant | None
    ttl_seconds: LifeSeconds | UnsetType = UNSET


class WithdrawPermission(Command, frozen=True, kw_only=True, tag="withdraw_permission"):
    """Needs admin on the bucket or file that it is on."""

    proposed_by = NODES
    caller: Caller
    target: Target
    target_id: Text
    permission_id: Text


class CreatePublicToken(Command, frozen=True, kw_only=True, tag="create_public_token"):
    """Needs admin on the file. Replies with the PublicTokenRecord.

    Lives until `expires_at_ms`, None for a day. `ttl_seconds`, instead of it, counts from the leader's time.
    `bucket_id` "" or the file's own.
    """

    fields_since = {"ttl_seconds": ENDS_ARE_COUNTED}
    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    bucket_id: Text
    token_id: Text
    token_sha256: Text
    expires_at_ms: Instant | None
    ttl_seconds: LifeSeconds | UnsetType = UNSET


class RevokePublicToken(Command, frozen=True, kw_only=True, tag="revoke_public_token"):
    """Needs admin on the file. From then on the link is gone; again changes nothing."""

    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    token_id: Text
