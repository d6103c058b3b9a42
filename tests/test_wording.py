"""The counter of constructions that are hard to read, and its bounds for the product."""

import pytest

from tests.wording import hits_in, is_fragment, main, texts_of


def test_product_has_no_more_hard_constructions_than_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "Give up when nothing went forward for so long.",
        "Where a file is there already, it stays.",
        "The client is told the offset.",
        "Nobody answers.",
        "The bytes that lie in it, beside others.",
        " ".join(["word"] * 33),
    ],
)
def test_hard_construction_is_counted(words: str) -> None:
    assert hits_in(words)


def test_plain_sentence_is_not_counted() -> None:
    words = "Return the replicas of a node. If the disk is full, the node rejects uploads."
    assert not hits_in(words)


def test_fragment_is_noticed() -> None:
    assert is_fragment("The same with a deadline.")
    assert is_fragment("What the log says of it.")
    assert not is_fragment("Wait at most this many seconds.")


def test_docstrings_comments_and_texts_are_read_and_names_are_not() -> None:
    source = (
        '"""One docstring."""\n# a comment of several words here\nx = "a text of four words"\ny = "name"\n'
    )
    assert [text.words for text in texts_of(source)] == [
        "One docstring.",
        "a text of four words",
        "a comment of several words here",
    ]
