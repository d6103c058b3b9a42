"""Deliberate bugs in the backups of labs: whose they are, their order, and what damage means."""

from tests.mutants.mutant import Mutant

_CHAINS = "tests/unit/deploy/gns3/test_chains.py::test_"
_PRUNE = "tests/unit/deploy/gns3/test_prune.py::test_"
_FOLDERS = "tests/unit/deploy/gns3/folders/test_"
_REPORTS = "tests/unit/deploy/gns3/alarms/test_reports.py::test_"
_STATE = "tests/unit/deploy/gns3/test_state.py::test_"
_LOCAL_RESTORE = "tests/cluster/test_command_local_restore.py::test_"
_LOCAL = "deploy/commands/gns3/restore_local"


def _of(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, ((f"deploy/gns3/{file}.py", old, new),), tests)


LABS = (
    _of(
        "chain shared by two servers",
        "chains",
        "key = (backup.tag.server.id, ",
        'key = ("", ',
        f"{_CHAINS}chain_is_of_one_owner_one_server_and_one_project",
    ),
    _of(
        "backup of a stranger in a chain",
        "chains",
        "        if backup.file.owner_id == owner_id:\n",
        "        if owner_id:\n",
        f"{_CHAINS}chain_is_of_one_owner_one_server_and_one_project",
    ),
    _of(
        "server goes on with the chain of another one",
        "chains",
        "if each.server.id == server.id and",
        "if each.server and",
        f"{_CHAINS}server_goes_on_with_its_own_chain",
    ),
    _of(
        "one of two servers with the project is restored",
        "chains",
        "    if len(found) > 1:\n",
        "    if len(found) > 2:\n",
        f"{_CHAINS}name_of_projects_of_two_servers_is_a_conflict",
    ),
    _of(
        "newest by its date",
        "chains",
        "    return fitting[-1]\n",
        "    return max(fitting, key=lambda each: each.made_at)\n",
        f"{_CHAINS}order_is_that_of_the_log_and_not_of_the_dates",
    ),
    _of(
        "backup of the future takes the place of the newest",
        "prune",
        "for number in whole[::-1][: rules.last]:",
        "for number in sorted(whole, key=lambda n: made_at[n])[::-1][: rules.last]:",
        f"{_PRUNE}backup_of_the_future_takes_no_place_and_stays",
    ),
    _of(
        "damaged backup counts",
        "prune",
        "if number not in damaged]",
        "if number >= 0]",
        f"{_PRUNE}damaged_backup_counts_for_no_rule_and_stays",
    ),
    _of(
        "damaged backup stands for an export",
        "stored",
        "return not self.is_damaged and self.fingerprint == fingerprint",
        "return self.fingerprint == fingerprint",
        f"{_CHAINS}damaged_backup_stands_for_nothing",
    ),
    _of(
        "another server at the same name has its identity",
        "logins",
        "if each.url == login.url and",
        "if each and",
        f"{_STATE}each_url_has_an_identity_of_its_own_that_a_new_password_does_not_change",
    ),
    _of(
        "full backup in the chain of exports",
        "chains",
        'kind = "" if mix_kinds else backup',
        'kind = "" if True else backup',
        f"{_CHAINS}full_backups_are_a_chain_of_their_own",
    ),
    _of(
        "link in an archive is followed",
        "folders/unpacking",
        'parent.kind != "directory"',
        'parent.kind == "file"',
        f"{_FOLDERS}unpacking.py::test_hostile_archive_is_rejected",
    ),
    _of(
        "path that leads out of the folder is unpacked",
        "folders/unpacking",
        'any(part in ("", ".", "..") for part in path.split("/"))',
        "not path",
        f"{_FOLDERS}unpacking.py::test_hostile_archive_is_rejected",
    ),
    _of(
        "file that was swapped for another is read",
        "folders/entries",
        "!= (entry.device, entry.inode)",
        "== ()",
        f"{_FOLDERS}packing.py::test_folder_swapped_for_a_link_is_not_followed",
    ),
    _of(
        "file that was changed just now counts as known",
        "folders/entries",
        "if newest_ns > self.begun_ns - SETTLED_NS:",
        "if newest_ns > self.begun_ns + SETTLED_NS:",
        f"{_FOLDERS}entries.py::test_file_that_has_just_changed_never_has_the_digest_of_another_scan",
    ),
    _of(
        "snapshot of an earlier night counts as one of this night",
        "folders/copies",
        "os.utime(directory / WORK, ns=(before.st_atime_ns, time.time_ns()), follow_symlinks=False)",
        "pass",
        f"{_FOLDERS}copies.py::test_snapshot_of_another_program_is_new_once",
    ),
    _of(
        "export makes a project good that full backups are expected of",
        "journal",
        'return kind in ("", self._content.runs.kind) or not self._content.runs.kind',
        "return True",
        f"{_REPORTS}export_by_hand_makes_no_project_good_that_full_backups_are_expected_of",
    ),
    _of(
        "clock that was ahead hides that no run ends",
        "alarms/rules",
        "return abs(now_s - ",
        "return (now_s - ",
        "tests/unit/deploy/gns3/alarms/test_rules.py",
    ),
    _of(
        "journal forgets which backups were good when it ends",
        "journal",
        "            remembered.close()\n",
        "            pass\n",
        f"{_STATE}projects_without_a_good_backup_since_many_tries_come_last",
    ),
    Mutant.of(
        "root unpacks the backup of another user",
        _LOCAL,
        "            if backup.file.owner_id != owner_id:\n",
        "            if not owner_id:\n",
        f"{_LOCAL_RESTORE}backup_of_another_user_is_not_unpacked",
    ),
    Mutant.of(
        "projects of two servers restored into one folder",
        _LOCAL,
        "for chain in found}) > 1:",
        "for chain in found}) > 2:",
        f"{_LOCAL_RESTORE}all_projects_are_those_of_one_server",
    ),
    Mutant.of(
        "configuration of a server restored beside its own",
        _LOCAL,
        "                if name and plan.name != name:\n",
        "                if name and not plan.name:\n",
        f"{_LOCAL_RESTORE}folder_of_the_server_goes_to_its_own_name_only",
    ),
    Mutant.of(
        "configuration of a server restored as a project",
        _LOCAL,
        "            if is_server_folder(backup.file.project_id):\n",
        "            if not backup.file.project_id:\n",
        f"{_LOCAL_RESTORE}folder_of_the_server_goes_to_its_own_name_only",
    ),
    Mutant.of(
        "server that runs is replaced",
        _LOCAL,
        "        if not isinstance(reached, StoppedServer):\n",
        "        if not reached:\n",
        f"{_LOCAL_RESTORE}server_that_runs_is_not_replaced",
    ),
)
