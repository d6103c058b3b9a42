"""Paths of the API: each variable in one is encoded, so that no id or name leads elsewhere."""

import ast
from pathlib import Path

import pytest

import filestore_client
from filestore_client.base.errors import InvalidRequest
from filestore_client.base.paths import content_path, path_part, upload_path

ROOT = Path(filestore_client.__file__).parent
OF_PARTS = {"_bucket", "_user", "_node", "_group", "_sessions", "_provider", "_granted_on"}
ENCODING = {"path_part", "content_path", "upload_path", *OF_PARTS}
CONSTANT = {"self._kind.path", "PROJECT.path", "new.path", "_PROVIDERS", "_SNAPSHOTS"}


def test_each_part_stays_one_part() -> None:
    assert path_part("a/../b?c#d%2e é") == "a%2F..%2Fb%3Fc%23d%252e%20%C3%A9"
    assert upload_path("../auth/revoke") == "/api/v1/files/..%2Fauth%2Frevoke/content"


@pytest.mark.parametrize("text", ["", ".", ".."])
def test_part_that_a_url_resolves_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        content_path(text)


def unencoded(node: ast.JoinedStr) -> list[str]:
    """The variables of a path that are inserted as they are."""
    texts = "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
    if not texts.startswith(("/api/v1/", "{}/")):
        return []
    values = [each.value for each in node.values if isinstance(each, ast.FormattedValue)]
    return [
        ast.unparse(value)
        for value in values
        if ast.unparse(value) not in CONSTANT
        and not (isinstance(value, ast.Call) and ast.unparse(value.func) in ENCODING)
        and not isinstance(value, ast.IfExp)  # of calls, which are looked at themselves
    ]


def test_every_variable_of_a_path_is_encoded() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), *names)
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr) and (names := unencoded(node))
    }
    assert found == set()
