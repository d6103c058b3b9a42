"""The console's sources: each address, attribute and selector with data in it is made in the one safe way."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from api.console.files import PLACE

SOURCES = {
    path.relative_to(PLACE).as_posix(): path.read_text()
    for path in sorted(PLACE.rglob("*.js"))
    if "vendor" not in path.parts
}
USED = (
    "path",
    "address",
    "fileAt",
    "bucketAt",
    "fileAddress",
    "recordAt",
    "inHours",
    "consoleOf",
    "originOf",
    "helpAddress",
    "runbookAddress",
)
# Text around `${}` that looks like an address, and is none that data can change: (file, text).
ALLOWED = {
    ("format.js", "{}/s"),  # a speed
    ("files.js", "{}/console/{}"),  # an origin, and what `address` made
    ("layout.js", "{}/"),  # the navigation's own constants
    (
        "ui/node-actions.js",  # commands, of checked names and addresses
        (
            "sudo -u filestore filestore node join --id {} --data /var/lib/filestore/node --coordinator {}"
            " --address {} --token-file - <<'END'\n{}\nEND\nsudo systemctl enable --now filestore-node"
        ),
    ),
    ("pages/help.js", "../help/{}.md"),  # a name of small letters, digits and hyphens
    ("pages/trash.js", "{}/{}"),  # the name of a file with its folder, as a text
    ("path.js", "#{}"),
    ("path.js", "{}/{}"),
    ("place.js", "/console/node{}"),  # location.hash, which stays behind the #
    ("place.js", "{}/console/members"),
    ("place.js", "{}/console/{}"),
    ("place.js", "{}/healthz"),
    ("router.js", "#{}{}"),  # the address as it is, with URLSearchParams
}
NAVIGATION = re.compile(r'href="#$')  # and then a constant of KINDS or NAVIGATION
OPEN_ADDRESS = re.compile(r'\b(?:href|src|srcset|action|formaction|data|poster)="[^"]*$')


@dataclass
class Template:
    """A template literal: its tag, and the texts around its expressions."""

    tag: str
    texts: list[str] = field(default_factory=lambda: [""])

    @property
    def shape(self) -> str:
        return "{}".join(self.texts)


def templates(source: str) -> Iterator[Template]:
    """Every template literal, also those within others. Line comments are left out."""
    source = re.sub(r"(?m)^\s*//.*$", "", source)
    stack: list[Template | str] = []
    at = 0
    while at < len(source):
        here, inside = source[at], stack[-1] if stack else "{"
        if isinstance(inside, Template):
            if here == "\\":
                inside.texts[-1] += source[at : at + 2]
                at += 1
            elif source.startswith("${", at):
                inside.texts.append("")
                stack.append("{")
                at += 1
            elif here == "`":
                yield inside
                stack.pop()
            else:
                inside.texts[-1] += here
        elif here == "`":
            tag = re.search(r"[\w.]*$", source[:at])
            stack.append(Template(tag[0] if tag else ""))
        elif here == "{":
            stack.append("{")
        elif here == "}" and stack:
            stack.pop()
        at += 1
    assert not [each for each in stack if isinstance(each, Template)], "a template without an end"


def test_every_address_with_data_in_it_is_made_by_path_or_address() -> None:
    found = {
        (name, template.shape)
        for name, source in SOURCES.items()
        for template in templates(source)
        if template.tag not in {"html", "path", "address"}
        and len(template.texts) > 1
        and re.search(r"[\w}]/[\w{]|^[#/]|/$", template.shape)
    }
    assert found <= ALLOWED, found - ALLOWED
    assert found >= ALLOWED, ALLOWED - found


def test_no_address_in_markup_is_put_together_there() -> None:
    """`href="#/file/${id}"` encodes nothing: such an attribute has one value, of `address` or `consoleOf`."""
    found = [
        (name, text[-60:])
        for name, source in SOURCES.items()
        for template in templates(source)
        if template.tag == "html"
        for text in template.texts[:-1]
        if OPEN_ADDRESS.search(text) and not NAVIGATION.search(text)
    ]
    assert found == []


def test_templates_are_found_within_others() -> None:
    source = 'const a = html`<a href="#/f/${id}">${rows.map((r) => html`<b>${`x/${r}`}</b>`)}</a>`; // `no'
    assert [(each.tag, each.shape) for each in templates(source.removesuffix(" // `no"))] == [
        ("", "x/{}"),
        ("html", "<b>{}</b>"),
        ("html", '<a href="#/f/{}">{}</a>'),
    ]


@pytest.mark.parametrize(
    ("what", "places"),
    [
        (r"\bencodeURIComponent\(", {"path.js"}),
        (r"\bnew Path\(", {"path.js"}),
        (r"\bfetch\(", {"api.js", "place.js", "pages/help.js", "pages/link.js"}),
        (
            r"\bnew URL\(",
            {
                "path.js",
                "files.js",
                "layout.js",
                "pages/help.js",
                "pages/uploads.js",
                "uploads/engine.js",
            },
        ),
        (r"\b(Date\.now\(\)|new Date\(\))", {"clock.js"}),  # the clock of this machine may be days off
        (r"\bquerySelector(All)?\((?!\")", set()),
        (r"\bimport\((?!\")", set()),
        (r"\.setAttribute\(|\bwindow\.open\(|\.innerHTML\b|insertAdjacentHTML|document\.write", set()),
    ],
)
def test_what_needs_care_is_in_few_places(what: str, places: set[str]) -> None:
    assert {name for name, source in SOURCES.items() if re.search(what, source)} == places


def test_names_are_imported_where_they_are_used() -> None:
    """There is no build step that would tell: a page that lacks one breaks when somebody clicks."""
    for name, source in SOURCES.items():
        code = re.sub(r"(?m)^\s*//.*$", "", source)
        for used in USED:
            if re.search(rf"(?<![\w.]){used}[`(]", code):
                told = rf"import \{{[^}}]*\b{used}\b|export (const|function) {used}\b"
                assert re.search(told, source), (name, used)
