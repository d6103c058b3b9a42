"""Which packages the process of each program loads: the walls between packages hold at run time, too."""

import subprocess
import sys

import pytest

from deploy.cli import ENTRIES

PACKAGES = ("ca", "runtime", "web", "metadata", "api", "coordinator", "node", "deploy", "filestore_client")
SERVED = {"ca", "runtime", "web", "metadata", "api"}  # what both roles are made of
PROGRAMS = {  # the module that a process loads before it runs, and the packages that it may reach
    "deploy.coordinator_api": SERVED | {"coordinator", "deploy"},
    "node.server": SERVED | {"node"},
    "node.worker_main": SERVED | {"node"},
    "node.doctor": SERVED | {"node"},
    "coordinator.admin.doctor": SERVED | {"coordinator"},
    "deploy.cli": {"deploy"},
}
COMMAND = SERVED | {"deploy", "filestore_client"}
LOADED = f"""
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
print(*{{name.partition(".")[0] for name in sys.modules}} & set({PACKAGES!r}))
"""


def packages_that_load(*modules: str) -> set[str]:
    """The packages of the product that a fresh process has loaded after it imported these modules."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *modules], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", PROGRAMS)
def test_program_loads_its_own_packages_alone(module: str) -> None:
    assert module.partition(".")[0] in packages_that_load(module) <= PROGRAMS[module]


def test_commands_load_neither_a_coordinator_nor_a_node_before_they_run() -> None:
    assert packages_that_load(*{f"deploy.commands.{entry.module}" for entry in ENTRIES.values()}) <= COMMAND
