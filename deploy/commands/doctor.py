"""`filestore doctor`: checks a data directory. Apart from `node` and `coordinator`, as it serves both.

Nothing may run there.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from ca.errors import InvalidRequest
from deploy.base.failures import NEEDS_ATTENTION
from deploy.base.options import data_option
from metadata.rpc.findings import Findings
from runtime.wording import counted


@click.command()
@data_option("The directory of a coordinator or of a node.")
@click.option("--deep", is_flag=True, help="Read every byte of blobs and snapshots too.")
def doctor(data: Path, deep: bool) -> int:
    """Check the directory of a process that does not run.

    The directory may be of a node or of a coordinator; nothing in it is changed. Prints each problem and how
    to solve it. Exit code 10 if there is any.
    """
    problem_count = 0
    for findings in _examined(data, deep=deep):
        print_findings(findings)
        problem_count += findings.problem_count
    click.echo(counted(problem_count, "problem", "problems") if problem_count else "sound")
    return NEEDS_ATTENTION if problem_count else 0


def _examined(data: Path, *, deep: bool) -> Iterator[Findings]:
    """For each role that the directory has. Raises InvalidRequest when it has none."""
    from coordinator.admin import doctor as of_coordinators
    from coordinator.storage.config import CoordinatorFiles
    from node import doctor as of_nodes
    from node.base.config import NodeFiles

    coordinator, node = CoordinatorFiles(data), NodeFiles(data)
    if not coordinator.config.exists() and not node.config.exists():
        raise InvalidRequest(f"--data: {data} contains neither coordinator.json nor node.json.")
    if coordinator.config.exists():
        yield of_coordinators.examine(coordinator, deep=deep)
    if node.config.exists():
        yield of_nodes.examine(node, deep=deep)


def print_findings(findings: Findings) -> None:
    """Facts first, then each problem with what to do."""
    for fact in findings.facts:
        click.echo(f"         {fact}")
    for problem in findings.problems:
        click.echo(f"PROBLEM  {problem.where}: {problem.what}")
        click.echo(f"         {problem.advice}")
    if (left := findings.problem_count - len(findings.problems)) > 0:
        click.echo(f"PROBLEM  and {left} more")
