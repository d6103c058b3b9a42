"""Random nights of two servers with one project id: the newest whole state of each is never deleted.

The decisions are the product's; the store is a list, and the steps of a backup are those of `BackupRun`.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.gns3.chains import chains_of, choose, to_continue
from deploy.gns3.fingerprint import Fingerprint
from deploy.gns3.identity import BackupTag, ServerIdentity
from deploy.gns3.prune import KeepRules, reasons_to_keep
from deploy.gns3.stored import StoredBackup
from tests.unit.deploy.gns3.test_chains import A, B, backup

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
SERVERS = (A, B)
ACTS = ("backup", "backup", "edit", "stranger", "damage", "clock", "prune")


@dataclass
class World:
    """`stored`: what the store has, in the order of the log. `made`: what it had of "me" before this act."""

    contents: dict[str, int] = field(default_factory=lambda: {A.id: 0, B.id: 0})
    stored: list[StoredBackup] = field(default_factory=list)
    made: dict[str, StoredBackup] = field(default_factory=dict)
    hours: int = 0
    shift: int = 0

    def append(self, owner: str, tag: BackupTag) -> None:
        at = START + timedelta(hours=self.hours + self.shift)
        file = replace_file(
            backup(1, owner=owner), file_uuid=f"{owner}{self.hours}", created_at=at.isoformat(), tag=tag
        )
        self.stored.append(file)
        if owner == "me":
            self.made[file.file.file_uuid] = file

    def put(self, changed: StoredBackup) -> None:
        at = [each.file.file_uuid for each in self.stored].index(changed.file.file_uuid)
        self.stored[at] = changed
        if changed.file.owner_id == "me":
            self.made[changed.file.file_uuid] = changed

    def act(self, act: str, number: int) -> None:
        self.hours += 5
        server = SERVERS[number % 2]
        own = [each for each in self.stored if each.file.owner_id == "me"]
        if act == "edit":
            self.contents[server.id] += 1 + number % 2
        elif act == "clock":
            self.shift = (0, 72, -72)[number % 3]
        elif act == "backup":
            self.back_up(server)
        elif act == "prune":
            self.prune(KeepRules(last=number % 2, daily=(number + 1) % 2))
        elif own:
            chosen = own[number % len(own)]
            if act == "stranger":
                self.append("mallory", chosen.tag)
            elif act == "damage":
                self.put(replace(chosen, is_damaged=True))

    def back_up(self, server: ServerIdentity) -> None:
        fingerprint = Fingerprint(self.contents[server.id], "a" * 40)
        chain = to_continue(chains_of(self.stored, "me"), server)
        if chain is None or not chain.newest.holds(fingerprint):
            self.append("me", BackupTag(fingerprint, server))

    def prune(self, rules: KeepRules) -> None:
        gone: set[str] = set()
        for chain in chains_of(self.stored, "me"):
            damaged = {number for number, each in enumerate(chain.backups) if each.is_damaged}
            times = [each.made_at for each in chain.backups]
            decided = reasons_to_keep(times, rules, damaged=damaged)
            gone |= {
                each.file.file_uuid for each, kept in zip(chain.backups, decided, strict=True) if not kept
            }
        self.stored = [each for each in self.stored if each.file.file_uuid not in gone]

    def check(self) -> None:
        """What was made last for a server and is whole is there, and its name brings it."""
        for server in SERVERS:
            whole = [
                each for each in self.made.values() if each.tag.server.id == server.id and not each.is_damaged
            ]
            chains = [chain for chain in chains_of(self.stored, "me") if chain.server.id == server.id]
            if whole:
                assert whole[-1] in self.stored
                found = choose(chains, "ospf")
                assert found == whole[-1] or found.is_damaged
        self.made = {uuid: each for uuid, each in self.made.items() if each in self.stored}


def replace_file(made: StoredBackup, *, file_uuid: str, created_at: str, tag: BackupTag) -> StoredBackup:
    fields = {name: getattr(made.file, name) for name in made.file.__struct_fields__}
    fields |= {"file_uuid": file_uuid, "created_at": created_at, "version_tag": tag.text}
    return StoredBackup(type(made.file)(**fields), tag)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 11)), max_size=40))
def test_newest_whole_state_of_each_server_is_always_restorable(acts: list[tuple[str, int]]) -> None:
    world = World()
    for act, number in acts:
        world.act(act, number)
        world.check()
