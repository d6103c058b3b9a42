"""axe-core, which judges how usable a page is without eyes, mouse or much room: fetched, never shipped."""

import shutil
import subprocess
from typing import Final

import pytest

from tests.browser.chromium import Page
from vendoring.__main__ import files_of
from vendoring.parts import Package, Part

PACKAGE: Final = Package(
    name="axe-core",
    version="4.14.1",
    integrity="sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ"
    "==",
    files=[Part(source="axe.min.js", name="axe.js", sha256="")],
)
_RUN: Final = """axe.run(document, { preload: false, resultTypes: ["violations"] }).then(
  ({ violations }) => violations.map(
    ({ id, help, nodes }) =>
      `${id}: ${help}: ${nodes.map((node) => node.html).join(" | ").slice(0, 600)}`))"""


def source() -> str:
    """The script, from the registry that npm is configured for. Skips the test where it cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    try:
        ((_, content),) = files_of(PACKAGE)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"axe-core cannot be fetched: {error}")
    return content.decode()


async def violations(page: Page, script: str) -> list[str]:
    """What is wrong with the page as it stands now, a line for each rule."""
    if not await page.value("'axe' in window"):
        await page.send("Runtime.evaluate", expression=script)
    found = await page.value(_RUN)
    return [str(line) for line in found]
