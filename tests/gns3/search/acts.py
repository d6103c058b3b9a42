"""What is done: labs change, are backed up, restored and pruned, and what they lie on is damaged.

Each operation takes the dice of its number alone, so that some of a run can be repeated without the others.
It returns what was done, or "" if that cannot be done now.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from deploy.processes import wait_until
from tests.blobs_on_disk import change_byte_on
from tests.gns3.search import strikes, verdict
from tests.gns3.search.model import Backup, Lab
from tests.gns3.search.stage import FRESH, Fault, Said, Stage, Strike
from tests.gns3.test_images import qcow2

DAY_S: Final = 86_400
DAYS_AHEAD: Final = (0, 1, 3)
FILES: Final = (
    "project-files/vpcs/{}/startup.vpc",
    "project-files/qemu/new {}/disk.qcow2",
    "project-files/docker/etc/hosts {}",
)
LEFT_OUT: Final = ("project-files/vpcs/{}.log", "project-files/captures/{}.pcap")
ATTENTION: Final = 10
OPEN_SHARE: Final = 0.4
IMAGES: Final = ("router", "switch", "host")
IMAGES_SHARE: Final = 0.7
LEFT_BYTES: Final = (1 << 20, 12 << 20)


def edit(stage: Stage) -> str:
    """Files of a lab are others, or new."""
    return _write(stage, FILES)


def scribble(stage: Stage) -> str:
    """A lab has files that GNS3 leaves out of exports."""
    return _write(stage, LEFT_OUT)


def _write(stage: Stage, places: Sequence[str]) -> str:
    """No file shrinks, since a backup of a project that shrank has to be confirmed."""
    lab = stage.dice.choice(stage.model.labs)
    names = [each.format(stage.dice.randrange(4)) for each in stage.dice.choices(places, k=3)]
    for name in names:
        file = stage.servers[lab.server].projects_path / lab.project_id / name
        size_bytes = max(stage.dice.choice((10, 3000, 1 << 20)), file.stat().st_size if file.exists() else 0)
        stage.servers[lab.server].write(lab.project_id, name, stage.dice.randbytes(size_bytes))
    lab.state = stage.state_of(lab.server, lab.project_id)
    return f"{lab}: {', '.join(names)}"


def rewire(stage: Stage) -> str:
    """A lab has one node more."""
    lab = stage.dice.choice(stage.model.labs)
    server, path = stage.servers[lab.server], f"/projects/{lab.project_id}"
    server.open(lab.project_id)
    name = f"PC{stage.dice.randrange(1 << 30)}"
    server.call("POST", f"{path}/nodes", {"name": name, "node_type": "vpcs", "compute_id": "local"})
    server.close(lab.project_id)
    lab.state = stage.state_of(lab.server, lab.project_id)
    return f"{lab}: {name}"


def add_image(stage: Stage) -> str:
    """A lab has one node more, with a disk. Clones have other images of the same names."""
    lab, name = stage.dice.choice(stage.model.labs), f"{stage.dice.choice(IMAGES)}.qcow2"
    server = stage.servers[lab.server]
    if name not in server.images():
        server.upload_image(name, qcow2(stage.dice.choice((1 << 16, 1 << 20, 8 << 20))))
    server.add_qemu(lab.project_id, f"VM{stage.dice.randrange(1 << 30)}", hda_disk_image=name)
    server.close(lab.project_id)
    lab.state = stage.state_of(lab.server, lab.project_id)
    return f"{lab}: {name}"


def backup(stage: Stage) -> str:
    """A night of one server, whose labs are open or closed. GNS3 lists the files of open ones only."""
    server, is_open = stage.dice.choice(stage.model.labs).server, stage.dice.random() < OPEN_SHARE
    labs = stage.model.of(server) if is_open else []
    for lab in labs:
        stage.servers[server].open(lab.project_id)
        lab.state = stage.state_of(server, lab.project_id)
    name, strike = strikes.draw(stage, server, imports=False)
    options = ["--with-images"] if stage.dice.random() < IMAGES_SHARE else []
    said = back_up(stage, server, strike, options, is_open=is_open)
    for lab in labs:
        stage.servers[server].close(lab.project_id)
    return f"{server} {'open ' if is_open else ''}{name}: {said.code}"


def back_up(
    stage: Stage, server: str, strike: Strike | None, options: Sequence[str], *, is_open: bool
) -> Said:
    """The same, held against the model."""
    stage.begin_run(server, is_open=is_open)
    said = stage.command("backup", "--all", "--server", server, *options, strike=strike)
    stage.look()
    for row in said.rows:
        lab = next((each for each in stage.model.of(server) if each.project_id == row["project_id"]), None)
        if lab is not None and row["status"] in ("stored", "unchanged"):
            _check_row(lab, row, said.code)
    if strike is None and said.code not in (0, ATTENTION):
        raise Fault(f"(a) a backup of {server} that nothing came over ends with {said.code}: {said.err}")
    done = {row["project_id"] for row in said.rows if row["status"] in ("stored", "unchanged")}
    if said.code in (0, ATTENTION) and (missed := {lab.project_id for lab in stage.model.of(server)} - done):
        raise Fault(f"(b) a backup of {server} ends with {said.code} and has not told of {missed}")
    if options and said.code in (0, ATTENTION):
        named = {md5 for lab in stage.model.of(server) for _, md5 in lab.state.images}
        if missing := named - stage.stored_md5s():
            raise Fault(f"(b) a backup of {server} with images ends with {said.code} and lacks {missing}")
    return said


def _check_row(lab: Lab, row: Mapping[str, Any], code: int) -> None:
    """What is called stored or unchanged is a whole backup of this lab as it is now."""
    told = f"{row['status']} {row['file_uuid']} of {lab}"
    found = next((each for each in lab.chain if each.file_uuid == row["file_uuid"]), None)
    if found is None:
        raise Fault(f"(a) {told} is no backup of this server's project")
    if difference := found.state.difference(lab.state.exported):
        raise Fault(f"(a) {told} has other content than the project: {difference}")
    if found.is_damaged:
        raise Fault(f"(b) {told} is damaged")
    if found.is_known_to_lack and code == 0:
        raise Fault(f"(b) {told} lacks files, and the exit code is 0")


def restore(stage: Stage) -> str:
    """The newest backup of a lab comes back on any server that can take it."""
    labs = [lab for lab in stage.model.labs if lab.whole and lab.whole[-1] is lab.chain[-1]]
    if not labs:
        return ""
    lab, target = stage.dice.choice(labs), stage.dice.choice(list(stage.servers))
    options = ["--without-images"] if stage.dice.random() < 0.3 else []
    refusal = stage.target(target).refusal(lab, lab.whole[-1], without_images=bool(options))
    name, strike = strikes.draw(stage, target, imports=True)
    is_full = target != FRESH and stage.dice.random() < 0.15
    ballast = fill(stage, target, stage.dice.randint(*LEFT_BYTES)) if is_full else None
    before = {each["project_id"] for each in stage.servers[target].projects().values()}
    asked = ("restore", lab.project_id, "--from", lab.server, "--to", target, *options)
    try:
        said = stage.command(*asked, strike=strike)
    finally:
        if ballast is not None:
            ballast.unlink()
    verdict.check_projects(stage)
    if said.code in (0, ATTENTION):
        if refusal:
            raise Fault(f"(b) {asked} ends with {said.code}, not with {refusal}")
        verdict.check_restored(stage, lab, lab.whole[-1], target, said)
    elif said.code != refusal and strike is None and not is_full:
        raise Fault(
            f"(a) {lab.whole[-1].file_uuid} of {lab} to {target}: {said.code}, not {refusal}: {said.err}"
        )
    after = {each["project_id"] for each in stage.servers[target].projects().values()}
    if said.code > 0 and said.code != ATTENTION and not strike and after - before:
        raise Fault(f"(c) a restore to {target} that failed left {after - before}")
    for project_id in after - before:
        stage.servers[target].delete(project_id)
    _remove_remains(stage, target)
    return f"{lab} to {target} {'full ' if is_full else ''}{name}: {said.code}"


def verify(stage: Stage) -> str:
    """What lies in the store is looked at, or read."""
    is_read = stage.dice.random() < 0.3
    verdict.check_verified(stage, ["--read-data"] if is_read else [])
    return "read" if is_read else "looked at"


def _remove_remains(stage: Stage, target: str) -> None:
    """Folders that no project lies in, and the images of the fresh server."""
    kept = {each["project_id"] for each in stage.servers[target].projects().values()}
    for path in stage.servers[target].projects_path.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path)
    if target == FRESH:
        stage.remove_images(FRESH)


def fill(stage: Stage, target: str, left_bytes: int) -> Path:
    """So much room is left on the disk of a lab server; the file that takes the rest."""
    path = stage.servers[target].projects_path
    ballast = path / "ballast"
    room_bytes = shutil.disk_usage(path).free - left_bytes
    with ballast.open("wb") as file:
        if room_bytes > 0:
            os.posix_fallocate(file.fileno(), 0, room_bytes)
    return ballast


def prune(stage: Stage) -> str:
    """Old backups go; the newest whole ones of each server's project stay."""
    keep = stage.dice.choice((1, 1, 2))
    rules = ["--keep-last", str(keep)] if stage.dice.random() < 0.7 else ["--keep-daily", "1"]
    name, strike = strikes.draw(stage, FRESH, imports=False)
    said = stage.command("prune", *rules, strike=strike)
    if strike is None and said.code not in (0, ATTENTION):
        raise Fault(f"(d) prune {rules} that nothing came over ends with {said.code}: {said.err}")
    left = stage.stored()
    for lab in stage.model.labs:
        must_stay = lab.whole[-keep:] if "--keep-last" in rules else lab.whole[-1:]
        if gone := [each.file_uuid for each in must_stay if each.file_uuid not in left]:
            raise Fault(f"(a) prune {rules} deleted {gone} of {lab}, which were to stay")
        lab.chain = [each for each in lab.chain if each.file_uuid in left]
    if stage.model.strange - left:
        raise Fault("(c) prune deleted files of a stranger")
    return f"{rules} {name}: {said.code}, {len(left)} left"


def move_clocks(stage: Stage) -> str:
    """The clocks of the cluster are days ahead, or behind what they were.

    They are not before the first certificates, which are not valid then.
    """
    shift_s = stage.dice.choice([days * DAY_S for days in DAYS_AHEAD if days * DAY_S != stage.shift_s])
    stage.move_clocks(shift_s)
    return f"{shift_s // DAY_S} days"


def damage(stage: Stage) -> str:
    """The same byte of every replica of the newest backup of a lab is wrong, and the cluster knows it.

    The clocks are right meanwhile: times of files are the kernel's, and a node compares them with its clock.
    """
    labs = [lab for lab in stage.model.labs if len(lab.whole) > 1 and lab.whole[-1] is lab.chain[-1]]
    if not labs:
        return ""
    lab = stage.dice.choice(labs)
    lost = lab.chain[-1]
    stage.move_clocks(0)
    record = stage.cluster.get(f"/project-files/{lost.file_uuid}").json
    sha256 = record["blob_sha256"]
    stage.cluster.wait_everywhere(sha256)
    offset = stage.dice.randrange(record["size_bytes"])
    for node in stage.cluster.nodes:
        change_byte_on(stage.cluster.data(node), sha256, offset)
    lost.is_damaged = True
    wait_until(lambda: _is_noticed(stage, lost, sha256), what="the damage", timeout_s=90)
    return f"{lab}: {lost.file_uuid} at {offset}"


def _is_noticed(stage: Stage, lost: Backup, sha256: str) -> bool:
    """A node notices what it reads."""
    for node in stage.cluster.nodes:
        try:
            stage.cluster.get(f"/files/{lost.file_uuid}", node=node)
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 - http.client: the content ends before it was to
            stage.note(f"reading {lost.file_uuid}: {error!r}")
    contents = stage.cluster.get("/cluster/damaged").json["contents"]
    return sha256 in [each["sha256"] for each in contents if each["lost_bytes"]]


def spoil(stage: Stage) -> str:
    """A project is emptied, cut or lost on its server's disk; then comes a night, and it is made good."""
    labs = [lab for lab in stage.model.labs if lab.whole]
    if not labs:
        return ""
    lab = stage.dice.choice(labs)
    server, kind = stage.servers[lab.server], stage.dice.choice(("empty", "topology", "gone"))
    folder, aside = server.projects_path / lab.project_id, stage.directory / "aside"
    server.kill()
    shutil.copytree(folder, aside)
    if kind == "empty":
        shutil.rmtree(folder / "project-files")
    elif kind == "topology":
        (folder / f"{lab.name}.gns3").write_bytes(b"")
    else:
        shutil.rmtree(folder)
    server.start()
    is_large = lab.name.startswith("large")
    try:
        stage.begin_run(lab.server, is_open=False)
        said = stage.command("backup", "--all", "--server", lab.server)
        if said.code in (0, ATTENTION) and (is_large or kind != "empty"):
            raise Fault(f"(b) a backup of {lab.server} ends with {said.code} while {lab} is spoilt: {kind}")
        stage.model.last_run = {
            project_id: (each, replace(state, files={}) if each is lab else state)
            for project_id, (each, state) in stage.model.last_run.items()
        }
        stage.look()
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(aside, folder)
        server.start()
    return f"{lab} {kind}: {said.code}"


def forge(stage: Stage) -> str:
    """A stranger stores a file that says it is the newest backup of a lab."""
    labs = [lab for lab in stage.model.labs if lab.chain]
    if not labs:
        return ""
    lab = stage.dice.choice(labs)
    record = stage.cluster.get(f"/project-files/{lab.chain[-1].file_uuid}").json
    token = stage.cluster.user_token(f"stranger{len(stage.model.strange)}")
    fields = {name: record[name] for name in ("project_id", "project_name", "version_tag")}
    stage.model.strange.add(stage.cluster.store(b"not a lab", record["filename"], token=token, **fields))
    return f"{lab}"


# How often each comes, in any unit.
ACTS: Final[Mapping[str, tuple[int, Callable[[Stage], str]]]] = {
    "edit": (8, edit),
    "scribble": (1, scribble),
    "rewire": (2, rewire),
    "image": (2, add_image),
    "backup": (9, backup),
    "restore": (8, restore),
    "verify": (2, verify),
    "prune": (3, prune),
    "clocks": (2, move_clocks),
    "damage": (2, damage),
    "spoil": (1, spoil),
    "forge": (1, forge),
}
