"""Finds the file, bucket or member that a person names. Shared by all commands that take a name or an id.

Tested by tests/cluster/test_command_files.py.
"""

import re
import sys
from typing import Final

import click
import msgspec

from ca.hostnames import authority_of
from deploy.base.output import moment, size
from deploy.base.printed import printable_name
from filestore_client import AsyncClient
from filestore_client.base.errors import Conflict, NotFound
from filestore_client.base.paths import forms_of
from filestore_client.base.records import Bucket, FileRecord
from metadata.model.records import DEFAULT_BUCKET_ID

CANDIDATES_SHOWN_MAX: Final = 10
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


async def member_urls(client: AsyncClient) -> dict[str, str]:
    """Return the URLs of nodes and coordinators, by id."""
    status = await client.cluster.status()
    members = {str(node["id"]): str(node["url"]) for node in status["nodes"]}
    authority = await client.call("GET", "/api/v1/cluster/ca", dict[str, object])
    coordinators = msgspec.convert(authority["coordinators"], list[dict[str, object]])
    for each in coordinators:
        place = authority_of(str(each["address"]), int(str(each["api_port"])))
        members[str(each["coordinator_id"])] = f"https://{place}"
    return members


def is_uuid(text: str) -> bool:
    """Whether it has the form of a file_uuid or of a bucket's id."""
    return _UUID.fullmatch(text) is not None


async def find_file(
    client: AsyncClient, named: str, *, bucket: str = "", is_changed: bool = False
) -> FileRecord:
    """Return the file of this file_uuid, or the only available one of this name.

    A name with "/" begins with the folder of the file in its bucket, by default the default bucket. `bucket`:
    the name or id of the bucket that the file is in; "" for any.

    Any user may choose this name, and an admin finds the files of all users. If the file belongs to another
    user, its owner is printed, and if `is_changed`, the user at the terminal must confirm.

    Raises NotFound; Conflict, which lists them, if several files have the name; Conflict if there is no
    terminal, or the answer is no.
    """
    if is_uuid(named):
        return await client.files.get(named)
    found = await _named(client, named, bucket)
    if not found:
        raise NotFound(f"There is no available file named {printable_name(named)!r} that you can access.")
    if len(found) > 1:
        newest = sorted(found, key=lambda file: file.created_at, reverse=True)[:CANDIDATES_SHOWN_MAX]
        many = f"{len(found)} files have this name, newest first. Give the file_uuid of one: "
        raise Conflict(many + "; ".join(map(_candidate, newest)))
    if found[0].owner_id != (await client.whoami()).user_id:
        told = f"{printable_name(found[0].filename)} belongs to {found[0].owner_id}"
        _tell_owner(f"{told} (file_uuid {found[0].file_uuid}).", "file", "file_uuid", is_changed=is_changed)
    return found[0]


async def find_file_uuid(
    client: AsyncClient, named: str, *, bucket: str = "", is_changed: bool = False
) -> str:
    """Return the file_uuid of a file, as `find_file` does. A file_uuid is not looked up."""
    if is_uuid(named):
        return named
    return (await find_file(client, named, bucket=bucket, is_changed=is_changed)).file_uuid


async def _named(client: AsyncClient, named: str, bucket: str) -> list[FileRecord]:
    """Return the available files with a name, or with a folder and a name."""
    folder, slash, name = named.rpartition("/")
    if not slash and not bucket:
        return [file async for file in client.files.named(named)]
    bucket_id = (await find_bucket(client, bucket)).bucket_id if bucket else DEFAULT_BUCKET_ID
    where = {"path": folder.strip("/") or "/"} if slash else {}
    listed = [
        file
        for form in forms_of(name)
        async for file in client.files.in_bucket(bucket_id, name=form, status="available", **where)
    ]
    return [await client.files.get(file.file_uuid) for file in listed]


def _tell_owner(told: str, what: str, key: str, *, is_changed: bool) -> None:
    """Print whose this is; if it `is_changed`, ask for confirmation. `key`: the name of its id.

    Raises Conflict.
    """
    if not is_changed:
        click.echo(told, err=True)
    elif not sys.stdin.isatty():
        raise Conflict(f"{told} To use this {what}, give its {key}.")
    elif not click.confirm(f"{told} Use this {what}?", err=True):
        raise Conflict(f"{told} Nothing was changed.")


async def find_bucket(client: AsyncClient, named: str, *, is_changed: bool = False) -> Bucket:
    """Return the bucket with this id or name.

    Any user may choose this name, and can read what is stored in an own bucket: if the owner is another user,
    the owner is printed, and if `is_changed`, the user at the terminal must confirm.

    Raises NotFound; Conflict if there is no terminal, or the answer is no.
    """
    if is_uuid(named):
        return await client.buckets.get(named)
    found = await client.buckets.find(named)
    if found is None:
        raise NotFound(f"There is no bucket named {printable_name(named)!r} that you can access.")
    if found.owner_id != (await client.whoami()).user_id and found.bucket_id != DEFAULT_BUCKET_ID:
        told = f"Bucket {printable_name(found.name)} belongs to {found.owner_id}"
        told = f"{told} (bucket_id {found.bucket_id})." if is_changed else f"{told}."
        _tell_owner(told, "bucket", "bucket_id", is_changed=is_changed)
    return await client.buckets.get(found.bucket_id)


async def bucket_names(client: AsyncClient) -> dict[str, str]:
    """The names of the buckets that the caller may see, by id."""
    return {bucket.bucket_id: bucket.name async for bucket in client.buckets.list()}


def _candidate(file: FileRecord) -> str:
    of = f"{file.kind} of {file.owner_id}" + (f" in {printable_name(file.path)}" if file.path else "")
    return f"{file.file_uuid} ({of}, {size(file.size_bytes)}, {moment(file.created_at)})"
