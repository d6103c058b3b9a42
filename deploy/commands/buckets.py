"""`filestore bucket`, `grant` and `share`: where files lie, who may do what, and links for anybody."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import click

from deploy.base.completion import complete_names
from deploy.base.connection import Connection, connection_options
from deploy.base.lookup import find_bucket, find_file_uuid
from deploy.base.options import Days, Expiry, Size
from deploy.base.output import json_option, moment, print_json, print_record, print_records, size
from deploy.base.printed import printable_name
from filestore_client import AsyncClient
from filestore_client.base.records import (
    Bucket,
    BucketUpload,
    Grant,
    ListedShare,
    Permission,
    PrincipalType,
    Share,
)

_BUCKETS: Final[Mapping[str, Callable[[Bucket], object]]] = {
    "bucket_id": lambda bucket: bucket.bucket_id,
    "name": lambda bucket: bucket.name,
    "files": lambda bucket: bucket.file_count,
    "used": lambda bucket: size(bucket.used_bytes),
    "quota": lambda bucket: size(bucket.quota_bytes) if bucket.quota_bytes else "none",
    "storage": lambda bucket: bucket.storage,
    "owner": lambda bucket: bucket.owner_id,
}
_UPLOADS: Final[Mapping[str, Callable[[BucketUpload], object]]] = {
    "file_uuid": lambda upload: upload.file_uuid,
    "kind": lambda upload: upload.kind,
    "name": lambda upload: upload.filename,
    "owner": lambda upload: upload.owner_id,
    "arrived": lambda upload: size(upload.offset_bytes),
    "reserved": lambda upload: size(upload.reserved_bytes),
    "until": lambda upload: moment(upload.expires_at),
}
_GRANTS: Final[Mapping[str, Callable[[Grant], object]]] = {
    "id": lambda grant: grant.id,
    "permission": lambda grant: grant.permission,
    "to": lambda grant: f"{grant.principal_type} {grant.principal_id}",
    "by": lambda grant: grant.granted_by,
    "until": lambda grant: moment(grant.expires_at),
}
_OWN_GRANTS: Final[Mapping[str, Callable[[Grant], object]]] = {
    "id": lambda grant: grant.id,
    "permission": lambda grant: grant.permission,
    "to": lambda grant: f"{grant.principal_type} {grant.principal_id}",
    "on": lambda grant: f"{grant.target} {grant.name}",
    "by": lambda grant: grant.granted_by,
    "until": lambda grant: moment(grant.expires_at),
}
_SHARES: Final[Mapping[str, Callable[[ListedShare], object]]] = {
    "id": lambda share: share.id,
    "status": lambda share: share.status,
    "by": lambda share: share.created_by,
    "made": lambda share: moment(share.created_at),
    "until": lambda share: moment(share.expires_at),
}
_OWN_SHARES: Final[Mapping[str, Callable[[ListedShare], object]]] = {
    "id": lambda share: share.id,
    "file": lambda share: share.filename,
    "status": lambda share: share.status,
    "by": lambda share: share.created_by,
    "made": lambda share: moment(share.created_at),
    "until": lambda share: moment(share.expires_at),
}
_quota = click.option(
    "--quota", "quota_bytes", type=Size(), help="How many bytes it may hold, such as 20G; 0 for no limit."
)
_bucket = click.argument("named", metavar="NAME|BUCKET_ID")
_on_bucket = click.option("--bucket", help="The name or the id of a bucket.")
_on_file = click.option("--file", shell_complete=complete_names, help="The name or the file_uuid of a file.")


@click.group()
def bucket() -> None:
    """Buckets, with owners and quotas: create, ls, show, set, rm.

    `uploads` lists the unfinished uploads in one.

    Every file is in a bucket. A user who may read a bucket may read its files.
    """


@bucket.command("create")
@click.argument("name")
@_quota
@json_option
@connection_options
def create_bucket(connection: Connection, name: str, quota_bytes: int | None, as_json: bool) -> None:
    """Make a bucket of your own, and print its id."""
    made = connection.run(lambda client: client.buckets.create(name, quota_bytes=quota_bytes or 0))
    print_json(made) if as_json else click.echo(made.bucket_id)


@bucket.command("ls")
@json_option
@connection_options
def list_buckets(connection: Connection, as_json: bool) -> None:
    """List the buckets that you may see."""

    async def work(client: AsyncClient) -> list[Bucket]:
        return [each async for each in client.buckets.list()]

    print_records(connection.run(work), _BUCKETS, as_json=as_json, empty="No buckets.")


@bucket.command("show")
@_bucket
@json_option
@connection_options
def show_bucket(connection: Connection, named: str, as_json: bool) -> None:
    """Show the whole record of a bucket."""
    print_record(connection.run(lambda client: find_bucket(client, named)), as_json=as_json)


@bucket.command("set")
@_bucket
@click.option("--name", help="Another name.")
@_quota
@click.option(
    "--trash-days",
    type=Days(least=0, most=90),
    metavar="DAYS",
    help="For how many days deleted files can be restored, at most 90; 0: not at all.",
)
@click.option(
    "--protect-days",
    type=Days(least=0, most=3660),
    metavar="DAYS",
    help="For how many days a new file cannot be deleted; 0: not at all.",
)
@click.option(
    "--storage",
    type=click.Choice(("auto", "hot", "cold")),
    help="Whole files (hot), chunks that files share (cold), or cold after a time (auto).",
)
@json_option
@connection_options
def set_bucket(connection: Connection, named: str, as_json: bool, **changes: Any) -> None:
    """Change the name, the quota, the days or the storage of a bucket."""
    if all(value is None for value in changes.values()):
        raise click.UsageError("Give --name, --quota, --trash-days, --protect-days or --storage.")

    async def work(client: AsyncClient) -> Bucket:
        found = await find_bucket(client, named)
        return await client.buckets.update(found.bucket_id, **changes)  # each upload changes its entity tag

    print_record(connection.run(work), as_json=as_json)


@bucket.command("uploads")
@_bucket
@json_option
@connection_options
def list_uploads(connection: Connection, named: str, as_json: bool) -> None:
    """List unfinished uploads, which count for the quota.

    Owners and admins of the bucket see all of them, others their own. `filestore rm FILE_UUID` deletes one.
    """

    async def work(client: AsyncClient) -> list[BucketUpload]:
        found = await find_bucket(client, named)
        return [each async for each in client.buckets.uploads(found.bucket_id)]

    print_records(connection.run(work), _UPLOADS, as_json=as_json, empty="No unfinished uploads.")


@bucket.command("rm")
@_bucket
@connection_options
def remove_bucket(connection: Connection, named: str) -> None:
    """Delete an empty bucket."""

    async def work(client: AsyncClient) -> None:
        await client.buckets.delete((await find_bucket(client, named, is_changed=True)).bucket_id)

    connection.run(work)
    click.echo(f"{printable_name(named)} is deleted.")


@click.group()
def grant() -> None:
    """Permissions on buckets and files: add, ls, rm."""


@grant.command("add")
@click.argument("principal")
@click.argument("permission", type=click.Choice(["read", "write", "admin"]))
@_on_bucket
@_on_file
@click.option(
    "--type",
    "principal_type",
    type=click.Choice(["user", "group", "role"]),
    default="user",
    show_default=True,
    help="What PRINCIPAL is.",
)
@click.option(
    "--expires",
    "expires",
    type=Expiry(),
    help="When it ends: 7d from now, or a time (RFC 3339).  [default: never]",
)
@click.option("--create", is_flag=True, help="Grant it even if PRINCIPAL does not exist yet.")
@json_option
@connection_options
def add_grant(
    connection: Connection,
    principal: str,
    permission: Permission,
    bucket: str | None,
    file: str | None,
    principal_type: PrincipalType,
    expires: dict[str, Any] | None,
    *,
    create: bool,
    as_json: bool,
) -> None:
    """Let a user or a group use a bucket or a file.

    PRINCIPAL is the id of a user, or with --type the name of a group or a role. It may then `read`; `write`,
    which includes it; or `admin`, which includes both, deletes files and gives permissions to others. The id
    of the permission is printed. Exit code 4 if PRINCIPAL does not exist, unless --create.
    """

    async def work(client: AsyncClient) -> Grant:
        target = await _target(client, bucket, file, is_changed=True)
        return await client.grants.add(
            principal,
            permission,
            principal_type=principal_type,
            existing=not create,
            **(expires or {}),
            **target,
        )

    made = connection.run(work)
    print_json(made) if as_json else click.echo(made.id)


@grant.command("ls")
@_on_bucket
@_on_file
@json_option
@connection_options
def list_grants(connection: Connection, bucket: str | None, file: str | None, as_json: bool) -> None:
    """List the permissions on a bucket or a file.

    Without either: those that you have, those that you granted, and those on your buckets and files. Admins
    see all.
    """
    if bucket is None and file is None:
        own = connection.run(_own_grants)
        print_records(own, _OWN_GRANTS, as_json=as_json, empty="No permissions: only owners and admins.")
        return

    async def work(client: AsyncClient) -> list[Grant]:
        return [each async for each in client.grants.list(**await _target(client, bucket, file))]

    print_records(
        connection.run(work), _GRANTS, as_json=as_json, empty="Only the owner and admins have access."
    )


async def _own_grants(client: AsyncClient) -> list[Grant]:
    return [each async for each in client.grants.list()]


@grant.command("rm")
@click.argument("grant_id")
@_on_bucket
@_on_file
@connection_options
def remove_grant(connection: Connection, grant_id: str, bucket: str | None, file: str | None) -> None:
    """Revoke a permission.

    GRANT_ID is in the first column of `filestore grant ls`.
    """

    async def work(client: AsyncClient) -> None:
        await client.grants.withdraw(grant_id, **await _target(client, bucket, file))

    connection.run(work)
    click.echo(f"{grant_id} is revoked.")


@click.group()
def share() -> None:
    """Links to a file for people without a token: create, ls, rm."""


@share.command("create")
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@click.option(
    "--expires",
    "expires",
    type=Expiry(),
    help="When it ends: 7d from now, or a time (RFC 3339).  [default: in 24 hours]",
)
@json_option
@connection_options
def create_share(connection: Connection, named: str, expires: dict[str, Any] | None, as_json: bool) -> None:
    """Make a link to a file, and print it.

    Anyone with the link can read the file until it expires. The link is shown only once.
    """

    async def work(client: AsyncClient) -> Share:
        file_uuid = await find_file_uuid(client, named, is_changed=True)
        return await client.shares.create(file_uuid, **(expires or {}))

    made = connection.run(work)
    if as_json:
        print_json(made)
        return
    click.echo(made.url)
    click.echo(f"Anyone with the link can read the file until {moment(made.expires_at)}.", err=True)
    click.echo(f"For people, in a browser: {_page_of(made)}", err=True)


def _page_of(share: Share) -> str:
    """Return the address of the console's page of a link, which shows what the file is before it is read."""
    parts = urlsplit(share.url)
    return f"{parts.scheme}://{parts.netloc}/console/#/link/{share.bucket_uuid}/{share.token}"


@share.command("ls")
@click.argument("named", metavar="[NAME|FILE_UUID]", required=False, shell_complete=complete_names)
@json_option
@connection_options
def list_shares(connection: Connection, named: str | None, as_json: bool) -> None:
    """List the links to a file, without their secrets.

    Without a file: the links that you created, and those to your files; admins see all. SHARE_ID of
    `filestore share rm` is in the first column.
    """
    if named is None:
        own = connection.run(_own_shares)
        print_records(own, _OWN_SHARES, as_json=as_json, empty="No links.")
        return

    async def work(client: AsyncClient) -> list[ListedShare]:
        file_uuid = await find_file_uuid(client, named)
        return [each async for each in client.shares.list(file_uuid)]

    print_records(connection.run(work), _SHARES, as_json=as_json, empty="No links.")


async def _own_shares(client: AsyncClient) -> list[ListedShare]:
    return [each async for each in client.shares.list()]


@share.command("rm")
@click.argument("named", metavar="NAME|FILE_UUID", shell_complete=complete_names)
@click.argument("share_id")
@connection_options
def remove_share(connection: Connection, named: str, share_id: str) -> None:
    """End a link."""

    async def work(client: AsyncClient) -> None:
        await client.shares.revoke(await find_file_uuid(client, named), share_id)

    connection.run(work)
    click.echo(f"{share_id} is revoked.")


async def _target(
    client: AsyncClient, bucket: str | None, file: str | None, *, is_changed: bool = False
) -> dict[str, Any]:
    """Return the bucket or file of a permission. Raises click.UsageError, NotFound, Conflict."""
    if (bucket is None) == (file is None):
        raise click.UsageError("Give either --bucket or --file.")
    if bucket is not None:
        return {"bucket_id": (await find_bucket(client, bucket)).bucket_id}
    return {"file_uuid": await find_file_uuid(client, str(file), is_changed=is_changed)}
