"""A class of people as a CSV file: every fault with its line, before anything is changed. Pure."""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ca.errors import InvalidRequest
from ca.names import check_names, check_user_id

FILE_BYTES_MAX: Final = 1 << 20
PEOPLE_MAX: Final = 2000
LABEL_CHARS_MAX: Final = 255
MAIL_CHARS_MAX: Final = 254
COLUMNS: Final = ("name", "groups", "mail", "label")
_DELIMITERS: Final = ",;\t"
_ENCODINGS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_MAIL: Final = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+")
_SPLIT: Final = re.compile(r"[\s,;|]+")
_FORMULA: Final = ("=", "+", "-", "@")  # with which a spreadsheet begins one


@dataclass(frozen=True, slots=True)
class Person:
    """A line of the file. `mail` and `label` are for its owner, and are not sent to the cluster."""

    line: int
    name: str
    groups: tuple[str, ...]
    mail: str = ""
    label: str = ""


class WrongList(InvalidRequest):
    """The file cannot be used. `faults`: a sentence for each, with its line."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(f"{len(faults)} faults, the first: {faults[0]}")
        self.faults = tuple(faults)


@dataclass(slots=True)
class _Faults:
    found: list[str] = field(default_factory=list)

    def add(self, line: int, what: str) -> None:
        self.found.append(f"line {line}: {what}")


def people_in(data: bytes) -> list[Person]:
    """Return the people of a class in the order of the file. Raises WrongList with every fault."""
    rows = list(_rows(_text(data)))
    if not rows:
        raise WrongList([f"the file is empty; its first line names the columns: {', '.join(COLUMNS)}"])
    (header_line, header), *rest = rows
    columns = _columns(header_line, header)
    faults = _Faults()
    people = [_person(line, cells, columns, faults) for line, cells in rest]
    if len(people) > PEOPLE_MAX:
        raise WrongList([f"{len(people)} people, and at most {PEOPLE_MAX} are imported at once"])
    if not people:
        raise WrongList(["there are no people below the names of the columns"])
    _check_repeats(people, faults)
    if faults.found:
        raise WrongList(sorted(faults.found, key=lambda each: int(each[5 : each.index(":")])))
    return people


def _text(data: bytes) -> str:
    """Decode the file. Raises WrongList with the line that cannot be read."""
    if len(data) > FILE_BYTES_MAX:
        raise WrongList([f"the file has more than {FILE_BYTES_MAX} bytes"])
    encoding = next((name for mark, name in _ENCODINGS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        what = 'is not UTF-8: save the file as "CSV UTF-8", in the spreadsheet\'s list of formats'
        raise WrongList([f"line {line}: byte 0x{data[error.start]:02x} {what}"]) from error
    if "\0" in text:
        raise WrongList(
            [f"line {text[: text.index(chr(0))].count(chr(10)) + 1}: a NUL byte: this is no CSV file"]
        )
    return text


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each line that is not empty with its number. Raises WrongList for a broken quotation."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(_DELIMITERS, key=first.count)  # spreadsheets of many countries write semicolons
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield line, stripped
            line = reader.line_num + 1
    except csv.Error as error:
        raise WrongList([f"line {line}: {error}"]) from error


def _columns(line: int, header: Sequence[str]) -> list[str]:
    """Return the name of each column, "" for empty ones at the end. Raises WrongList."""
    names = [cell.casefold() for cell in header]
    while names and not names[-1]:
        names.pop()
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or "name" not in names:
        what = f"there is a column {unknown[0]!r}" if unknown else "there is no column 'name'"
        raise WrongList([f"line {line}: {what}; the columns are {', '.join(COLUMNS)}, and name is required"])
    if len(set(names)) < len(names):
        raise WrongList([f"line {line}: a column appears twice"])
    return names


def _person(line: int, cells: Sequence[str], columns: Sequence[str], faults: _Faults) -> Person:
    if any(cells[len(columns) :]):
        faults.add(line, f"{len(cells)} cells, but there are {len(columns)} columns")
    found = dict(zip(columns, cells, strict=False))
    name, groups = found.get("name", ""), tuple(filter(None, _SPLIT.split(found.get("groups", ""))))
    mail, label = found.get("mail", ""), found.get("label", "")
    try:
        check_user_id(name, "name")
        check_names(groups, "groups")
    except InvalidRequest as error:
        faults.add(line, error.details)
    if name.startswith(("-", "@")):
        faults.add(
            line, "name: must not begin with - or @, which commands and spreadsheets take for something else"
        )
    if mail and (len(mail) > MAIL_CHARS_MAX or not _MAIL.fullmatch(mail)):
        faults.add(line, "mail: is no address such as ann@example.org")
    if len(label) > LABEL_CHARS_MAX or _CONTROL.search(label):
        faults.add(line, f"label: at most {LABEL_CHARS_MAX} characters, and no control characters")
    if label.startswith(_FORMULA):
        faults.add(line, "label: must not begin with = + - or @, with which a spreadsheet begins a formula")
    return Person(line, name, tuple(dict.fromkeys(groups)), mail, label)


def _check_repeats(people: Iterable[Person], faults: _Faults) -> None:
    """Note names that appear again. Two that differ in case only are one person, mistyped."""
    seen: dict[str, Person] = {}
    for person in people:
        earlier = seen.setdefault(person.name.casefold(), person)
        if earlier is not person and person.name:
            same = "is" if earlier.name == person.name else "differs in case only from the name"
            faults.add(person.line, f"name: {person.name} {same} in line {earlier.line}, too")
