"""Which packages the process of each program loads: the walls between packages hold at run time, too."""

import ast
import subprocess
import sys

import pytest

from deploy.cli import ENTRIES
from tests import rooms
from tests.sources import tree_of

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
ROLES = ("coordinator", "node")
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
    assert packages_that_load(*{entry.path for entry in ENTRIES.values()}) <= COMMAND


def imported_by(role: str) -> set[str]:
    """Every module that `filestore ROLE run` imports, also when it is called."""
    path = rooms.ROOT / "deploy" / "commands" / f"{role}.py"
    functions = [found for found in tree_of(path).body if isinstance(found, ast.FunctionDef)]
    (run,) = (function for function in functions if function.name == "run")
    return {f"deploy.commands.{role}"} | {
        found.module for found in ast.walk(run) if isinstance(found, ast.ImportFrom) and found.module
    }


@pytest.mark.parametrize("role", ROLES)
def test_command_that_runs_a_role_loads_nothing_of_the_other(role: str) -> None:
    loaded = packages_that_load(*imported_by(role))
    assert role in loaded <= COMMAND | {role}
