"""The CSV file of a class: what spreadsheets write, and what is wrong, line by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.people.class_list import FILE_BYTES_MAX, PEOPLE_MAX, Person, WrongList, people_in

ANN = Person(2, "ann", ("netlab", "winter"), "ann@example.org", "Anna Müller")
TEXT = "name,groups,mail,label\nann,netlab winter,ann@example.org,Anna Müller\n"


def faults(data: bytes | str) -> list[str]:
    with pytest.raises(WrongList) as caught:
        people_in(data.encode() if isinstance(data, str) else data)
    return list(caught.value.faults)


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.replace(",", ";").encode(),
        TEXT.replace(",", "\t").encode(),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", ",,,\n").encode(),
        TEXT.replace("name,", "Name , ").encode(),
        TEXT.encode().rstrip(),
        TEXT.replace("netlab winter", '"netlab; winter,netlab"').encode(),
        TEXT.replace("netlab winter", "netlab|winter").encode(),
    ],
)
def test_list_is_read_as_spreadsheets_write_it(data: bytes) -> None:
    assert people_in(data) == [ANN]


def test_columns_come_in_any_order_and_only_the_name_is_needed() -> None:
    assert people_in(b"name\nann\n\n ,\nbob\n") == [Person(2, "ann", ()), Person(5, "bob", ())]
    assert people_in(b"groups;name\n;ann\n") == [Person(2, "ann", ())]


def test_line_of_a_person_counts_the_lines_of_the_cells_before() -> None:
    assert people_in(b'name,label\nann,"Anna"\nbob,Bob\n')[1].line == 3
    (fault,) = faults('name,label\nann,"two\nlines"\nb b,Bob\n')[1:]
    assert fault.startswith("line 4: name: ")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("name\n", "there are no people"),
        ("ann,netlab\n", "line 1: there is a column 'ann'"),
        ("name,gruops\nann,x\n", "line 1: there is a column 'gruops'"),
        ("groups\nx\n", "line 1: there is no column 'name'"),
        ("name,name\nann,bob\n", "line 1: a column appears twice"),
        ("name\nann\na b\n", "line 3: name: 1 to 128 of"),
        ("name\n../etc\n", "line 2: name: 1 to 128 of"),
        ("name\n" + "x" * 129, "line 2: name: 1 to 128 of"),
        ("name\nm\u00fcller\n", "line 2: name: 1 to 128 of"),
        ("name,groups\nann,a/b\n", "line 2: groups: each name must be"),
        ("name,groups\n,netlab\n", "line 2: name: 1 to 128 of"),
        ("name,groups\nann,netlab,extra\n", "line 2: 3 cells, but there are 2 columns"),
        ("name\nann\nbob\nann\n", "line 4: name: ann is in line 2, too"),
        ("name\nann\nAnn\n", "line 3: name: Ann differs in case only from the name in line 2, too"),
        ("name\n-rf\n", "line 2: name: must not begin with -"),
        ("name\n@SUM\n", "line 2: name: must not begin with - or @"),
        ("name,mail\nann,=cmd|'/c calc'!A1\n", "line 2: mail: is no address"),
        ("name,label\nann,=1+1\n", "line 2: label: must not begin with ="),
        ("name,label\nann,\x1b[2J\n", "line 2: label: at most 255 characters, and no control"),
        ("name,label\nann,\u202eevil\n", "line 2: label: at most 255 characters, and no control"),
        ('name\n"ann\n', "line 2: unexpected end of data"),
        ("name\nann\0\n", "line 2: a NUL byte"),
        (b"name\nann\nm\xfcller\n", 'line 3: byte 0xfc is not UTF-8: save the file as "CSV UTF-8"'),
        (b"PK\x03\x04\x14\x00\x06\x00", "line 1: a NUL byte"),
        (b"x" * (FILE_BYTES_MAX + 1), f"the file has more than {FILE_BYTES_MAX} bytes"),
        ("name\n" + "".join(f"u{n}\n" for n in range(PEOPLE_MAX + 1)), f"{PEOPLE_MAX + 1} people"),
    ],
)
def test_fault_is_named_with_its_line(data: bytes | str, expected: str) -> None:
    assert faults(data)[0].startswith(expected)


def test_every_fault_is_named_in_the_order_of_lines() -> None:
    found = faults("name,groups,mail\na b,x/y,nobody\nann,,\nann,,\n,,ann@\n")
    assert [fault.split(":")[0] for fault in found] == ["line 2", "line 2", "line 4", "line 5", "line 5"]


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: ("name,groups\n" + text).encode()))
def test_any_bytes_are_a_list_or_faults(data: bytes) -> None:
    try:
        people = people_in(data)
    except WrongList:
        return
    assert people
    assert len({person.name.casefold() for person in people}) == len(people)
