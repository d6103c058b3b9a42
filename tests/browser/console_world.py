"""What a user of the console has: files of every kind, a bucket, a link and permissions."""

import hashlib
import io
import json
import os
import zipfile
from dataclasses import dataclass

from tests.cluster.harness import Cluster

IMAGE = b"QFI\xfb" + bytes(range(256)) * 1000
HOSTILE_NAMES = (
    "<img src=x onerror=document.title='hit'>.gns3p",
    "'\"><script>document.title='hit'",
    "${document.title='hit'} {{7*7}} `x`",
    "\u202egnp.tcejorp",
    "é" * 255,
    "lab \U0001f680 \u65e5\u672c\u8a9e.gns3p",
)


@dataclass(frozen=True)
class World:
    """Alice with her token, and the ids of what is hers."""

    token: str
    project: str
    image: str
    bucket: str
    link: str

    def address(self, template: str) -> str:
        """An address of `console_pages.PAGES` with these ids."""
        return template.format(project=self.project, image=self.image, bucket=self.bucket)


def project_archive() -> bytes:
    """A GNS3 project that needs IMAGE, and another image that nobody has."""
    disks = [("vios.qcow2", hashlib.md5(IMAGE).hexdigest()), ("asa.qcow2", "0" * 32)]
    nodes = [
        {"properties": {"hda_disk_image": name, "hda_disk_image_md5sum": digest}} for name, digest in disks
    ]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        document = {"name": "ospf lab", "revision": 9, "topology": {"nodes": nodes}}
        archive.writestr("project.gns3", json.dumps(document))
    return made.getvalue()


def stored(cluster: Cluster, path: str, content: bytes, token: str, **fields: object) -> str:
    """A file of the kind of this path, with content; its file_uuid."""
    created = cluster.post(path, {**fields, "size_bytes": len(content)}, token=token)
    assert created.status == 201, created.body
    put = cluster.request("PUT", created.json["upload_url"], content=content, token=token)
    assert put.status == 200, put.body
    return str(created.json["file_uuid"])


def new_world(cluster: Cluster, user: str = "alice") -> World:
    """The user, with all of it."""
    token = cluster.user_token(user, groups=["students"])
    image = stored(cluster, "/vms", IMAGE, token, filename="vios.qcow2", virt_type="qemu", format="qcow2")
    project = stored(
        cluster,
        "/project-files",
        project_archive(),
        token,
        filename="ospf-lab.gns3project",
        project_id="ospf",
        project_name="ospf lab",
        version_tag="v2",
    )
    made = cluster.post("/buckets", {"name": f"course of {user}", "quota_bytes": 10**9}, token=token)
    bucket = str(made.json["bucket_id"])
    for name in HOSTILE_NAMES:
        stored(
            cluster,
            "/project-files",
            os.urandom(100),
            token,
            filename=name,
            project_id=name[:100],
            bucket_id=bucket,
        )
    notes = json.dumps({"router": "r1", "lines": list(range(20))}).encode()
    typed = {"content_type": "application/json", "backup_type": "full"}
    stored(cluster, "/backups", notes, token, filename="notes.json", **typed)
    for name in HOSTILE_NAMES:
        gone = stored(cluster, "/backups", b"x", token, filename=name, **typed)
        assert cluster.request("DELETE", f"/backups/{gone}", token=token).status == 200
    grant = {"permission": "read", "principal_type": "group", "principal_id": "students"}
    assert cluster.post(f"/files/{project}/permissions", grant, token=token).status == 201
    shared = cluster.post(f"/files/{project}/public-token", {}, token=token)
    cluster.remember(shared.json["token"])
    link = f"#/link/{shared.json['bucket_uuid']}/{shared.json['token']}"
    return World(token=token, project=project, image=image, bucket=bucket, link=link)
