"""The pictures of the README: of a cluster with labs as people have them, as the console shows them.

`FILESTORE_PICTURES=docs make browser` puts them there; otherwise they are only looked at for their size.
"""

import hashlib
import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.chromium import Page
from tests.browser.console_pages import QUIET, open_console, show, sign_in
from tests.cluster.harness import Cluster

PICTURE_BYTES_MAX: Final = 60_000
SEED: Final = 7  # of contents: the same sums in each picture
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

IMAGES: Final[dict[str, tuple[str, int]]] = {  # by name: what runs it, and its size
    "vios-adventerprisek9-m.spa.159-3.m6.qcow2": ("qemu", 57_300_000),
    "vios_l2-adventerprisek9-m.ssa.high_iron_20200929.qcow2": ("qemu", 46_800_000),
    "alpine-virt-3.20.3.qcow2": ("qemu", 18_400_000),
    "c7200-adventerprisek9-mz.155-2.XB.image": ("dynamips", 31_200_000),
}
# By project: version, size of what was saved, and routers with the index of their image.
LABS: Final[dict[str, tuple[str, int, list[tuple[str, int]]]]] = {
    "ospf multi-area": ("v4", 12_600_000, [("R1", 0), ("R2", 0), ("ABR1", 0), ("ABR2", 0), ("SW1", 1)]),
    "bgp route reflectors": ("v2", 9_100_000, [("RR1", 0), ("RR2", 0), ("PE1", 0), ("PE2", 0)]),
    "mpls l3vpn": ("v7", 21_900_000, [("P1", 3), ("P2", 3), ("PE1", 0), ("CE1", 2)]),
    "campus vlans": ("v1", 4_400_000, [("DSW1", 1), ("DSW2", 1), ("ASW1", 1), ("host", 2)]),
    "ipsec site to site": ("v3", 6_700_000, [("HQ", 0), ("branch", 0), ("isp", 3)]),
    "ipv6 first hop security": ("v2", 3_800_000, [("R1", 0), ("SW1", 1), ("attacker", 2)]),
    "eigrp named mode": ("v1", 5_200_000, [("R1", 3), ("R2", 3), ("R3", 3)]),
    "multicast pim sparse": ("v5", 8_300_000, [("RP", 0), ("R1", 0), ("source", 2), ("receiver", 2)]),
}


def export(name: str, saved_bytes: int, nodes: list[tuple[str, str, str]], chance: random.Random) -> bytes:
    """An exported project: its topology, with names and md5s of images, and the saved disks of its nodes."""
    topology = [
        {
            "name": node,
            "node_type": "qemu",
            "properties": {"hda_disk_image": image, "hda_disk_image_md5sum": md5},
        }
        for node, image, md5 in nodes
    ]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        document = {"name": name, "revision": 9, "version": "3.0.6", "topology": {"nodes": topology}}
        archive.writestr("project.gns3", json.dumps(document))
        for node, _, _ in nodes:
            place = f"project-files/qemu/{node}/hda_disk.qcow2"
            archive.writestr(place, chance.randbytes(saved_bytes // len(nodes)))
    return made.getvalue()


def upload(cluster: Cluster, path: str, content: bytes, token: str, **fields: Any) -> str:
    made = cluster.post(path, {**fields, "size_bytes": len(content)}, token=token)
    assert made.status == 201, made.body
    stored = cluster.request("PUT", made.json["upload_url"], content=content, token=token)
    assert stored.status == 200, stored.body
    return str(made.json["file_uuid"])


def fill(cluster: Cluster) -> tuple[str, str]:
    """A course's cluster: the token of who teaches it, and the file_uuid of a project with a link."""
    chance = random.Random(SEED)
    token = cluster.user_token("m.keller", groups=["netlab-2026"])
    images = []
    for name, (virt_type, size_bytes) in IMAGES.items():
        content = (b"QFI\xfb" if name.endswith("qcow2") else b"\x7fELF") + chance.randbytes(size_bytes)
        kind = {"virt_type": virt_type, "format": "qcow2" if virt_type == "qemu" else "raw"}
        upload(cluster, "/vms", content, token, filename=name, **kind)
        images.append((name, hashlib.md5(content, usedforsecurity=False).hexdigest()))
    uuids = []
    for name, (version, saved_bytes, routers) in LABS.items():
        nodes = [(router, *images[index]) for router, index in routers]
        about = {"project_id": name.replace(" ", "-"), "project_name": name, "version_tag": version}
        about["content_type"] = "application/zip"
        content = export(name, saved_bytes, nodes, chance)
        filename = f"{name.replace(' ', '-')}.gns3project"
        uuids.append(upload(cluster, "/project-files", content, token, filename=filename, **about))
    shown = uuids[0]
    grant = {"permission": "read", "principal_type": "group", "principal_id": "netlab-2026"}
    assert cluster.post(f"/files/{shown}/permissions", grant, token=token).status == 201
    link = cluster.post(f"/files/{shown}/public-token", {}, token=token)
    cluster.remember(link.json["token"])
    return token, shown


async def test_pictures_of_the_readme_are_small(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    token, project = fill(cluster)
    directory = Path(os.environ.get("FILESTORE_PICTURES") or tmp_path)
    await page.shape(1360, 760)
    await open_console(page, cluster.nodes[0])
    await sign_in(page, token)
    await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
    for name, height, address, selector in (
        ("console-projects", 760, "#/projects", "main tbody tr"),
        ("console-file", 1140, f"#/file/{project}?kind=project", "main .facts"),
    ):
        await page.shape(1360, height)
        await show(page, address, selector)
        await page.until(QUIET)
        await page.screenshot(directory / f"{name}.webp")
        assert (directory / f"{name}.webp").stat().st_size < PICTURE_BYTES_MAX
