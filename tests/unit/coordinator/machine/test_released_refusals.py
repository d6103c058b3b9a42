"""No refusal of the release before is worded otherwise, or has another code.

Members store the replies of commands, and compare what they store. In a cluster of two releases a member
whose words differ would be found to differ, and end. Words change with the rules, as what a command does.
"""

import ast
import io
import tarfile
from collections.abc import Iterable, Iterator
from subprocess import run

from tests.cluster.previous_release import ROOT, previous_commit

MACHINE = "coordinator/machine"


def refusals(sources: Iterable[str]) -> set[tuple[str, str]]:
    """The classes of what is raised, each with its words; what is filled in is left out."""
    calls = (
        node.exc
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    )
    return {
        (ast.unparse(call.func), words)
        for call in calls
        for argument in call.args
        for words in said(argument)
    }


def said(argument: ast.expr) -> Iterator[str]:
    match argument:
        case ast.Constant(value=str(words)):
            yield words
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from said(body)
            yield from said(orelse)


def released() -> Iterator[str]:
    """The modules of the release before. Skips the test where git or its history is missing."""
    archive = run(
        ["git", "archive", previous_commit(), MACHINE], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        for member in tree.getmembers():
            if member.name.endswith(".py") and (file := tree.extractfile(member)) is not None:
                yield file.read().decode()


def test_refusals_of_the_release_before_are_what_they_were() -> None:
    now = refusals(path.read_text("utf-8") for path in (ROOT / MACHINE).rglob("*.py"))
    before = refusals(released())
    by_older_rules = {  # than its own
        ("PayloadTooLarge", "The quota of the bucket is {} bytes, {} are used."),
    }
    assert len(before) > 50
    assert before - now == by_older_rules
