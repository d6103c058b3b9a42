"""`filestore put`: files, whole directories, or standard input."""

import asyncio
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from filestore_client import AsyncClient
from filestore_client.errors import FilestoreError
from filestore_client.ranges import CONNECTIONS, CONNECTIONS_MAX
from filestore_client.records import FileRecord, Kind
from filestore_client.upload_memory import Memory

from ca.errors import FilestoreError as LocalError
from ca.errors import InvalidRequest
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILED, FAILURES, exit_code_of, line_of, reason_of
from deploy.base.lookup import find_bucket, is_uuid
from deploy.base.output import json_option, print_json, size
from deploy.base.terminal import ProgressBars, end_at_once_when_interrupted, printable_name
from deploy.commands.files import KINDS

COMPRESSIONS = ("none", "deflate", "bz2", "xz", "zstd")
VIRT_TYPES = ("docker", "dynamips", "iou", "qemu", "virtualbox", "vmware", "vpcs")
_OF_PROJECTS = (
    "project_id",
    "project_name",
    "version_tag",
    "compression",
    "include_images",
    "include_snapshots",
    "keep_compute_ids",
    "reset_mac_addresses",
    "is_read_only",
)
_OF_IMAGES = ("virt_type", "format", "vcpus", "ram_mb")

Outcome = FileRecord | FilestoreError | LocalError | OSError


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to upload, and the name that it gets."""

    path: Path
    filename: str


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--kind", type=click.Choice(KINDS), help="[default: by the content]")
@click.option("--recursive", "-r", is_flag=True, help="Every file below a directory too.")
@click.option("--bucket", default="", help="The name or the id of a bucket.  [default: the default bucket]")
@click.option("--filename", help="The name that downloads get.  [default: the name of the file]")
@click.option("--content-type", help="[default: guessed from the name]")
@click.option(
    "--retention", "retention_period", type=click.IntRange(1, 876000), help="Hours to keep the file."
)
@click.option("--project-id", help="Of a project.  [default: the name of the file without its ending]")
@click.option("--project-name")
@click.option("--version-tag")
@click.option("--compression", type=click.Choice(COMPRESSIONS))
@click.option("--include-images", is_flag=True)
@click.option("--include-snapshots", is_flag=True)
@click.option("--keep-compute-ids", is_flag=True)
@click.option("--reset-mac-addresses", is_flag=True)
@click.option("--read-only", "is_read_only", is_flag=True)
@click.option("--virt-type", type=click.Choice(VIRT_TYPES), help="What runs an image.  [default: qemu]")
@click.option("--format", help="The format of an image.  [default: by the content]")
@click.option("--vcpus", type=click.IntRange(1, 1024), help="Of an image.")
@click.option("--ram", "ram_mb", type=click.IntRange(1), help="Of an image, in MB.")
@click.option(
    "--only-url",
    is_flag=True,
    help="Send the bytes through --url, not to the node that the cluster names (behind a balancer).",
)
@click.option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    default=CONNECTIONS,
    show_default=True,
    help="How many files are sent at once; one file takes one connection.",
)
@json_option
@connection_options
def put(
    connection: Connection,
    files: tuple[str, ...],
    kind: Kind | None,
    recursive: bool,
    bucket: str,
    filename: str | None,
    only_url: bool,
    connections: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Upload each FILE (- alone reads standard input), print its file_uuid; of several, file_uuid and FILE.

    The kind is that of the content: disk images, exported projects, and backups for everything else. The same
    command after an interruption goes on where it ended. The checksum is compared at the end.
    """
    wanted = _wanted(files, filename, recursive=recursive)
    said = {name: value for name, value in options.items() if value is not None and value is not False}
    fields = {name: value for name, value in said.items() if value != ""}
    kind = kind or _kind_of_options(fields)

    async def work(client: AsyncClient) -> list[Outcome]:
        if bucket:
            fields["bucket_id"] = bucket if is_uuid(bucket) else (await find_bucket(client, bucket)).bucket_id
        with ProgressBars() as bars:
            if files == ("-",):
                end_at_once_when_interrupted()
                named = filename or "stdin"
                with bars.bar(named) as progress:
                    stored = await client.files.upload(
                        sys.stdin.buffer,
                        kind=kind or "backup",
                        filename=named,
                        only_url=only_url,
                        progress=progress,
                        **fields,
                    )
                return [stored]
            return await put_files(
                client, wanted, kind, fields, connections=connections, only_url=only_url, bars=bars
            )

    outcomes = connection.run(work)
    if len(outcomes) == 1 and not isinstance(outcomes[0], FileRecord):
        raise outcomes[0]
    named = [file.path for file in wanted] or [Path("-")]
    return _print_outcomes(named, outcomes, is_guessed=kind is None, as_json=as_json)


async def put_files(
    client: AsyncClient,
    files: Sequence[Wanted],
    kind: Kind | None,
    fields: Mapping[str, Any],
    *,
    connections: int,
    only_url: bool,
    bars: ProgressBars,
) -> list[Outcome]:
    """Upload files, so many at once; per file, in order, its record or what it failed for.

    All are remembered until all are stored: the same command after a failure makes no second record of those
    that had come through.
    """
    outcomes: list[Outcome] = [InvalidRequest("not begun")] * len(files)
    memories: list[Memory] = []
    waiting = deque(enumerate(files))

    async def work() -> None:
        while waiting:
            number, file = waiting.popleft()
            try:
                with bars.bar(str(file.path)) as progress:
                    outcomes[number], memory = await client.files.upload_remembered(
                        file.path,
                        kind=kind,
                        filename=file.filename,
                        only_url=only_url,
                        progress=progress,
                        **fields,
                    )
                memories.append(memory)
            except (*FAILURES, OSError) as error:
                outcomes[number] = error

    async with asyncio.TaskGroup() as group:
        for _ in range(min(connections, len(files))):
            group.create_task(work())
    if len(memories) == len(files):
        for memory in memories:
            memory.forget()
    return outcomes


def _wanted(files: tuple[str, ...], filename: str | None, *, recursive: bool) -> list[Wanted]:
    """The files to upload; none for standard input. Raises click.UsageError, InvalidRequest."""
    if files == ("-",):
        return []
    if "-" in files:
        raise click.UsageError("- is given alone.")
    paths: list[Path] = []
    for file in map(Path, files):
        if recursive and file.is_dir():
            paths += sorted(path for path in file.rglob("*") if path.is_file() and not path.is_symlink())
        else:
            paths.append(file)
    if recursive and not paths:
        raise InvalidRequest(f"There is no file below {', '.join(files)}.")
    if filename is not None and len(paths) > 1:
        raise click.UsageError("--filename names one FILE, and several are given.")
    given: dict[Path, Path] = {}
    for path in paths:
        if (place := path.resolve()) in given:
            raise click.UsageError(f"{given[place]} and {path} are one FILE.")
        given[place] = path
    return [Wanted(path, filename or "") for path in paths]


def _kind_of_options(fields: Mapping[str, Any]) -> Kind | None:
    """The kind that the options belong to. Raises click.UsageError for options of two kinds."""
    of_project = [name for name in _OF_PROJECTS if name in fields]
    of_image = [name for name in _OF_IMAGES if name in fields]
    if of_project and of_image:
        raise click.UsageError(f"{of_project[0]} is of projects, {of_image[0]} of images.")
    return "project" if of_project else "image" if of_image else None


def _print_outcomes(
    files: Sequence[Path], outcomes: Sequence[Outcome], *, is_guessed: bool, as_json: bool
) -> int:
    """A line for every file; the exit code."""
    code = 0
    for file, outcome in zip(files, outcomes, strict=True):
        name = printable_name(str(file))
        if isinstance(outcome, FAILURES):
            click.echo(f"filestore: {name}: {line_of(outcome)}", err=True)
            code = code or exit_code_of(outcome)
        elif isinstance(outcome, OSError):
            click.echo(f"filestore: {name}: {reason_of(outcome)}", err=True)
            code = code or FAILED
        elif as_json:
            print_json(outcome)
        else:
            line = outcome.file_uuid if len(files) == 1 else f"{outcome.file_uuid}  {name}"
            if not _is_printed(line):
                code = code or FAILED
            elif is_guessed and sys.stderr.isatty():
                click.echo(f"{name}: stored as {_of_kind(outcome)}, {size(outcome.size_bytes)}", err=True)
    return code


def _of_kind(file: FileRecord) -> str:
    if file.kind == "image":
        return f"an image ({getattr(file, 'format', '')})"
    return f"a {file.kind}"


def _is_printed(line: str) -> bool:
    """A line about what is stored; where nobody takes it, it is not lost."""
    try:
        click.echo(line)
    except OSError as error:
        click.echo(f"filestore: stored as {line}, which cannot be printed: {reason_of(error)}", err=True)
        return False
    return True
