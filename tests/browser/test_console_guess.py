"""The console recognises what a file is as the command does: the same contents, asked of both."""

import base64
import io
import json
import zipfile
from typing import Final

import pytest

from filestore_client.kinds import content_type_of, image_format, kind_of
from tests.browser.chromium import Page
from tests.browser.console_pages import open_console
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
GUESSED: Final = """(async (text, name) => {
  const place = document.querySelector('script[type=module]').src;
  const { guess } = await import(new URL('uploads/guess.js', place));
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const { kind, format, content_type: type } = await guess(new File([bytes], name));
  return [kind, kind === 'image' ? format : '', type];
})"""


def zipped(*members: str, comment: bytes = b"") -> bytes:
    """A zip with these members."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in members:
            archive.writestr(name, "x" * 1000)
        archive.comment = comment
    return made.getvalue()


CONTENTS: Final = (
    (b"QFI\xfb" + bytes(100), "router"),
    (b"KDMV" + bytes(100), "disk.bin"),
    (b"# Disk DescriptorFile\nversion=1", "disk.txt"),
    (bytes(0x40) + b"\x7f\x10\xda\xbe" + bytes(9), "a"),
    (b"vhdxfile" + bytes(100), "a.vhdx"),
    (b"conectix" + bytes(100), "a.vpc"),
    (bytes(0x8001) + b"CD001" + bytes(100), "install"),
    (bytes(510) + b"\x55\xaa", "flash.img"),
    (bytes(510) + b"\x55\xaa", "boot.bin"),
    (zipped("a/b.txt", "project.gns3"), "lab.zip"),
    (zipped("project.gns3", comment=b"PK" * 30_000), "lab.gns3project"),
    (zipped("a/b.txt"), "other.zip"),
    (b"PK\x03\x04 cut off", "cut.gns3p"),
    (b"", "empty.qcow2"),
    (b"", "empty"),
    (b"hostname r1\n", "config.json"),
    (b"x", "picture.PNG"),
    (b"x", "archive.tar.gz"),
)


async def test_content_is_recognised_as_the_command_does(page: Page, cluster: Cluster) -> None:
    await open_console(page, cluster.nodes[0])
    await page.until("document.querySelector('#token')")
    different = []
    for content, name in CONTENTS:
        text = json.dumps(base64.b64encode(content).decode())
        seen = await page.value(f"{GUESSED}({text}, {json.dumps(name)})")
        kind = kind_of(io.BytesIO(content), name)
        format_ = (image_format(content, name) or "raw") if kind == "image" else ""
        expected = [kind, format_, content_type_of(name)]
        if seen != expected:
            different.append((name, seen, expected))
    assert not different
