"""A night's work: thirty projects of odd names, from nothing to 300 MB."""

import os
from typing import Final

from tests.gns3.lab_server import LabServer

MIB: Final = 1 << 20
ODD_NAMES: Final = (
    "plain",
    "with spaces and (brackets)",
    "ünïcödé Łab 網路",
    "dots.and-dashes_",
    "100% & $HOME; `x` 'y' \"z\"",
    "-begins-like-an-option",
    "a" * 120,
    "tab-less # hash ? question",
)
SIZES: Final = [0, 1, 4096, 70_000, 3 * MIB] * 5 + [9 * MIB, 17 * MIB, 40 * MIB, 120 * MIB, 300 * MIB]


def odd_name(number: int) -> str:
    """The name of one of them."""
    return f"{ODD_NAMES[number % len(ODD_NAMES)]} {number}"


def thirty_projects(server: LabServer) -> dict[str, str]:
    """Make them; their ids by their names."""
    ids: dict[str, str] = {}
    for number, size_bytes in enumerate(SIZES):
        disk = os.urandom(min(size_bytes, 16 * MIB)) * max(1, size_bytes // (16 * MIB))
        files = {"project-files/qemu/1/hda_disk.qcow2": disk, "project-files/ü/empty": b""}
        ids[odd_name(number)] = server.make_project(odd_name(number), files)
    return ids
