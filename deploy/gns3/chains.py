"""Chains: the backups of one project of one server, by one owner and of one kind, in the order of the log.

A project id alone does not name a project: the machines of a classroom are clones and have the same ids.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ca.errors import Conflict, NotFound
from deploy.base.lookup import is_uuid
from deploy.base.output import moment
from deploy.base.printed import printable_name
from deploy.gns3.fingerprint import Fingerprint, Kind
from deploy.gns3.identity import BackupTag, ServerIdentity
from deploy.gns3.stored import NO_TAG, StoredBackup, end_of, label_of, stored_backups
from filestore_client import AsyncClient
from filestore_client.base.errors import NotFound as NoSuchFile
from filestore_client.base.records import Project

TAG: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")  # a date begins with a digit
MESSAGE_CHARS_MAX: Final = 255  # the API's, of a label
_OF_THE_OTHER_KIND: Final[Mapping[Kind, str]] = {
    "export": "It has full backups: restore one with --local, on the machine of the GNS3 server.",
    "full": "It has backups that GNS3 exported: restore one without --local.",
}


@dataclass(frozen=True, slots=True)
class BackupChain:
    """At least one backup, in the order of the log: their dates are of clocks that may have been wrong."""

    backups: Sequence[StoredBackup]

    @property
    def newest(self) -> StoredBackup:
        """The last one in the log."""
        return self.backups[-1]

    @property
    def to_restore(self) -> StoredBackup:
        """Return the newest that is not of a replaced folder: a restore that is repeated changes nothing."""
        return next((each for each in reversed(self.backups) if not each.is_replaced), self.newest)

    @property
    def server(self) -> ServerIdentity:
        """Which server it is of, with its latest name."""
        return self.newest.tag.server

    @property
    def project_id(self) -> str:
        """GNS3's id of the project."""
        return self.newest.file.project_id

    @property
    def project_name(self) -> str:
        """Return the last name of the project."""
        return self.newest.file.project_name

    @property
    def kind(self) -> Kind:
        """Whether its backups are exports or whole folders."""
        return self.newest.fingerprint.kind

    def at(self, version: str) -> StoredBackup:
        """Return the newest with this tag, the newest until the end of this date, or that of a file_uuid.

        Raises NotFound, InvalidRequest.
        """
        name = printable_name(self.project_name)
        if is_uuid(version):
            for each in self.backups:
                if each.file.file_uuid == version:
                    return each
            raise NotFound(f"{version} is no backup of {name!r}.")
        if TAG.fullmatch(version):
            tagged = [each for each in self.backups if each.version == version]
            if not tagged:
                raise NotFound(f"No backup of {name!r} has the tag {version!r}.")
            return tagged[-1]
        until = end_of(version)
        fitting = [each for each in self.backups if each.made_at <= until]
        if not fitting:
            first = moment(min(self.backups, key=lambda each: each.made_at).file.created_at)
            raise NotFound(f"The first backup of {name!r} is from {first}.")
        return fitting[-1]

    def is_named(self, named: str) -> bool:
        """Whether this is the project's id or its latest name."""
        return named == self.project_id or self.project_name == label_of(named)


def chains_of(
    backups: Iterable[StoredBackup], owner_id: str, *, mix_kinds: bool = False
) -> list[BackupChain]:
    """Return the chains of one owner. `backups` are in the order of the log. Pure.

    `mix_kinds`: exports and full backups of a project are one chain.
    """
    found: dict[tuple[str, str, str], list[StoredBackup]] = defaultdict(list)
    for backup in backups:
        if backup.file.owner_id == owner_id:
            kind = "" if mix_kinds else backup.fingerprint.kind
            key = (backup.tag.server.id, backup.file.project_id, kind)
            found[key].append(backup)
    return [BackupChain(each) for each in found.values()]


def of_server(chains: Sequence[BackupChain], named: str) -> list[BackupChain]:
    """Return the chains of the server with this name or id; all for "". Pure.

    Raises NotFound if there is none; Conflict if several servers have had the name: it may be another one
    than the caller thinks of.
    """
    found = [chain for chain in chains if not named or chain.server.is_named(named)]
    if named and not found:
        raise NotFound(f"There is no backup of a GNS3 server {printable_name(named)!r}.")
    if named and len(ids := {chain.server.id: chain.server.shown for chain in found}) > 1:
        known = ", ".join(ids.values())
        raise Conflict(f"--from: {len(ids)} servers have had this name. Give the id of one: {known}")
    return found


def of_projects(chains: Sequence[BackupChain], named: Sequence[str]) -> list[BackupChain]:
    """Return the chains of the projects with these names or ids; all for (). Pure.

    Raises NotFound if one of them has none.
    """
    if absent := [each for each in named if not any(chain.is_named(each) for chain in chains)]:
        told = ", ".join(repr(printable_name(each)) for each in absent)
        raise NotFound(f"There is no backup of a project named {told}.")
    return [chain for chain in chains if not named or any(chain.is_named(each) for each in named)]


def to_continue(
    chains: Sequence[BackupChain], server: ServerIdentity, kind: Kind = "export"
) -> BackupChain | None:
    """The chain that a server's next backup of a project continues; `chains` are the project's. Pure."""
    return next((each for each in chains if each.server.id == server.id and each.kind == kind), None)


def choose(chains: Sequence[BackupChain], named: str) -> StoredBackup:
    """Return the backup that a project's name or id means, or one of these followed by `@VERSION`. Pure.

    Without a version it is the newest. A version is a tag, or a date: a day or a moment, which means the
    newest that was made until its end.

    Raises NotFound; Conflict if several projects have the name.
    """
    name, version = named, ""
    found = [chain for chain in chains if chain.is_named(named)]
    if not found and "@" in named:
        name, _, version = named.rpartition("@")
        found = [chain for chain in chains if chain.is_named(name)]
    if not found:
        raise NotFound(f"There is no backup of a project named {printable_name(name)!r}.")
    if len(found) > 1:
        told = "; ".join(
            f"{each.project_id} of server {each.server.shown} (last {moment(each.newest.file.created_at)})"
            for each in found
        )
        raise Conflict(
            f"{len(found)} projects have this name. Give the id of one, and its server with --from: {told}"
        )
    return found[0].at(version) if version else found[0].to_restore


async def chosen_chains(
    client: AsyncClient, named: Sequence[str], *, owner_id: str, server: str = ""
) -> list[BackupChain]:
    """Return the chains of an owner by the names of their projects: all, or those that are named.

    `named` are names and ids of projects; a file_uuid means a chain of this backup alone. `server` is a name
    or an id. Raises NotFound if there is none; the error names other owners who have some.
    """
    backups = await stored_backups(client)
    chains = _of_server(backups, owner_id, server)
    if not named:
        if not chains:
            raise NotFound(f"There is no backup of {_whose(owner_id, server)}.{_others(backups, owner_id)}")
        return sorted(chains, key=lambda chain: (chain.project_name, chain.server.name))
    chosen: list[BackupChain] = []
    for each in named:
        found = [chain for chain in chains if chain.is_named(each)]
        chosen += found or [BackupChain([await find_backup(client, each, owner_id=owner_id, server=server)])]
    return chosen


async def find_backup(
    client: AsyncClient, named: str, *, owner_id: str, server: str = "", kind: Kind | None = "export"
) -> StoredBackup:
    """Return the backup that a person means: a file_uuid, or what `choose` finds in an owner's chains.

    Only backups of this kind have a name; with None those of both. Raises NotFound, Conflict.
    """
    everything = await stored_backups(client)
    backups = [backup for backup in everything if kind in (None, backup.fingerprint.kind)]
    chains = _of_server(backups, owner_id, server, mix_kinds=kind is None)
    if is_uuid(named) and not any(chain.project_id == named for chain in chains):
        with suppress(NoSuchFile):
            file = await client.projects.get(named)
            return StoredBackup(file, BackupTag.parse(file.version_tag) or BackupTag(Fingerprint(0, "")))
    try:
        return choose(chains, named)
    except NotFound as error:
        name = named.rpartition("@")[0]
        meant = [chain for chain in _all_chains(backups) if chain.is_named(named) or chain.is_named(name)]
        told = error.details + _others([each.newest for each in meant], owner_id)
        if kind and any(
            each.is_named(named) and each.kind != kind for each in chains_of(everything, owner_id)
        ):
            told += f" {_OF_THE_OTHER_KIND[kind]}"
        raise NotFound(told) from error


async def label_version(client: AsyncClient, file: Project, *, message: str = "", tag: str = "") -> None:
    """Give a backup its message and its tag. Neither replaces another one: raises Conflict then."""
    if message and file.message not in ("", message):
        raise Conflict(
            f"The project is unchanged since the backup {file.file_uuid}, which has the message "
            f"{printable_name(file.message)!r} already. To change it, use `filestore gns3 note`."
        )
    if tag and file.tag not in ("", NO_TAG, tag):
        raise Conflict(
            f"The project is unchanged since the backup {file.file_uuid}, which has the tag "
            f"{printable_name(file.tag)!r} already. To change it, use `filestore gns3 tag`."
        )
    if message and not file.message:
        await client.projects.update(file.file_uuid, message=message)
    if tag:
        await move_tag(client, file, tag)


async def move_tag(client: AsyncClient, file: Project, tag: str) -> None:
    """Give a tag to a backup. The other backups of this project of this server and owner lose it.

    They lose it afterwards: if this is interrupted, `prune` keeps the old version and the new one.
    """
    await client.projects.update(file.file_uuid, tag=tag)
    backups = await stored_backups(client, project_id=file.project_id)
    for chain in chains_of(backups, file.owner_id, mix_kinds=True):
        if any(each.file.file_uuid == file.file_uuid for each in chain.backups):
            for other in chain.backups:
                if other.version == tag and other.file.file_uuid != file.file_uuid:
                    await client.projects.update(other.file.file_uuid, tag=NO_TAG)


def _of_server(
    backups: Sequence[StoredBackup], owner_id: str, server: str, *, mix_kinds: bool = False
) -> list[BackupChain]:
    chains = chains_of(backups, owner_id, mix_kinds=mix_kinds)
    return [each for each in chains if not server or each.server.is_named(server)]


def _all_chains(backups: Sequence[StoredBackup]) -> list[BackupChain]:
    owners = {each.file.owner_id for each in backups}
    return [chain for owner_id in sorted(owners) for chain in chains_of(backups, owner_id)]


def _whose(owner_id: str, server: str) -> str:
    return f"{owner_id} for the GNS3 server {server!r}" if server else owner_id


def _others(backups: Iterable[StoredBackup], owner_id: str) -> str:
    """Tell who else has backups."""
    owners = sorted({each.file.owner_id for each in backups} - {owner_id})
    return f" Other owners have backups; see --owner: {', '.join(owners)}." if owners else ""
