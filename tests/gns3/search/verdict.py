"""What must hold after an operation, and at the end: every lab comes back as it was."""

from collections.abc import Sequence

from tests.gns3.search.model import Backup, Lab
from tests.gns3.search.stage import FRESH, Fault, Said, Stage


def check_projects(stage: Stage) -> None:
    """Every server shows its own projects, from their folders, as they were left. Raises Fault."""
    for lab in stage.model.labs:
        status, _ = stage.servers[lab.server].request("GET", f"/projects/{lab.project_id}")
        if status != 200:
            raise Fault(f"(c) {lab} is not shown any more: {status}")
        shown = stage.servers[lab.server].call("GET", f"/projects/{lab.project_id}")
        folder = stage.servers[lab.server].projects_path / lab.project_id
        if (shown["name"], shown["path"]) != (lab.name, str(folder)):
            raise Fault(f"(c) {lab} is shown as {shown['name']} in {shown['path']}")
        if difference := stage.state_of(lab.server, lab.project_id).difference(lab.state):
            raise Fault(f"(c) {lab} has changed by itself: {difference}")


def check_restored(stage: Stage, lab: Lab, backup: Backup, target: str, said: Said) -> None:
    """A restored project is what its backup was made of. Raises Fault."""
    (row,) = said.rows
    if row["file_uuid"] != backup.file_uuid:
        whose = stage.model.backup(row["file_uuid"])
        raise Fault(
            f"(a) restored {row['file_uuid']} ({whose and whose[0]}), not {backup.file_uuid} of {lab}"
        )
    found = stage.state_of(target, row["project_id"])
    if difference := found.difference(backup.state):
        raise Fault(f"(a) {backup.file_uuid} of {lab} came back on {target} with other content: {difference}")
    images = stage.servers[target].images()
    missing = {(name, md5) for name, md5 in backup.state.images if images.get(name) != md5}
    if len(row["missing_images"]) != len(missing):
        raise Fault(f"(b) {backup.file_uuid} of {lab} came back on {target} without {missing}: {row}")
    if said.code == 0 and (missing or backup.is_known_to_lack):
        raise Fault(f"(b) {backup.file_uuid} of {lab} came back on {target} without a part, with 0: {row}")


def check_verified(stage: Stage, options: Sequence[str] = ()) -> None:
    """What `verify` calls whole is, and it names the newest of every lab. Raises Fault."""
    said = stage.command("verify", *options)
    works = {row["file_uuid"]: row["works"] for row in said.rows}
    stored_md5s = stage.stored_md5s()
    for lab in stage.model.labs:
        if not lab.chain:
            continue
        newest = lab.chain[-1]
        is_whole = not newest.is_damaged and {md5 for _, md5 in newest.state.images} <= stored_md5s
        if newest.file_uuid not in works:
            raise Fault(f"(b) verify does not tell of {newest.file_uuid} of {lab}: {said.out}")
        if works[newest.file_uuid] and not is_whole:
            raise Fault(f"(b) verify calls {newest.file_uuid} of {lab} whole: {newest}")
        if not works[newest.file_uuid] and is_whole:
            raise Fault(f"(a) verify does not call {newest.file_uuid} of {lab} whole: {said.out}")
    if said.code == 0 and any(lab.chain[-1].is_known_to_lack for lab in stage.model.labs if lab.chain):
        raise Fault("(b) verify ends with 0 while a backup lacks files of its project")
    if said.code == 0 and not all(works.values()):
        raise Fault("(b) verify ends with 0 while a backup does not work")


def check_all(stage: Stage) -> None:
    """The newest whole backup of every lab comes back on the fresh server. Raises Fault."""
    check_projects(stage)
    check_verified(stage)
    for lab in stage.model.labs:
        if not lab.whole:
            continue
        newest = lab.whole[-1]
        is_newest = newest is lab.chain[-1]
        named = (lab.project_id, "--from", lab.server) if is_newest else (newest.file_uuid,)
        options = ["--without-images"] if stage.target(FRESH).missing(newest.state) else []
        said = stage.command("restore", *named, "--to", FRESH, *options)
        if said.code not in (0, 10):
            raise Fault(f"(a) {newest.file_uuid} of {lab} cannot be restored: {said.err}")
        check_restored(stage, lab, newest, FRESH, said)
        stage.servers[FRESH].delete(said.rows[0]["project_id"])
        stage.remove_images(FRESH)
