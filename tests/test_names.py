"""Names of modules and public classes consist of words that a newcomer knows, or that the glossary explains.

The glossary is the table of terms in docs/architecture.md; `vocabulary.txt` has the words of the field. A new
word is added to one of the two: to the vocabulary only if a developer who has never seen this code knows it.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.rooms import ROOT
from tests.sources import tree_of
from tests.wording import BOUNDS

VOCABULARY: Final = Path(__file__).parent / "vocabulary.txt"
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TERM: Final = re.compile(r"^\| ([^|]+) \|", re.MULTILINE)
_PARTICIPLE: Final = re.compile(r"[a-z]{3,}(?<!e)(?:ed|ing)")
_PARTICIPLE_LIKE: Final = frozenset({"embed", "ping", "ring", "seed", "setting", "sibling", "string"})
# Public functions that are called by a participle alone, as counted. It may only be lowered: a function is
# named by a verb (`fetch`), or by the noun that it returns (`fetched_blob`).
PARTICIPLES_MAX: Final = 65


def words_of(name: str) -> set[str]:
    """Return the words of a name, in lower case."""
    return {word.lower() for word in _WORD.findall(name)}


def public_names() -> Iterator[str]:
    """Yield the names of modules, rooms and public classes of the product."""
    for package in BOUNDS:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.parent.name if path.name == "__init__.py" else path.stem
            tree = tree_of(path)
            classes = (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
            yield from (name for name in classes if not name.startswith("_"))


def public_functions() -> Iterator[tuple[Path, str]]:
    """Yield the public functions and methods of the product, without properties."""
    for package in BOUNDS:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(tree_of(path)):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                    continue
                if not any("property" in ast.unparse(each) for each in node.decorator_list):
                    yield path, node.name


@cache
def glossary() -> dict[str, set[str]]:
    """Return the terms of the glossary, each with its words."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("\n## Terms\n")[2]
    terms = (term.strip() for row in _TERM.findall(page) for term in row.split(","))
    return {term: words_of(term) for term in terms if term not in ("term", "---")}


def is_known(word: str) -> bool:
    """Return whether the vocabulary has a word, or the glossary its singular or its root (`scrubber`)."""
    terms = set[str]().union(*glossary().values())
    forms = {word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("er"), word[:-1]}
    return word in vocabulary() or bool(forms & terms)


@cache
def vocabulary() -> list[str]:
    """Return the words of the field that names use."""
    return VOCABULARY.read_text("utf-8").split()


def used_words() -> set[str]:
    """Return the words of all names of modules, rooms and public classes."""
    return set[str]().union(*(words_of(name) for name in public_names()))


def test_words_of_names_are_of_the_field_or_in_the_glossary() -> None:
    unknown = {word for word in used_words() if not is_known(word)}
    assert not unknown, "explain these in docs/architecture.md, or use words of the field (vocabulary.txt)"


def test_vocabulary_is_sorted_and_has_no_word_that_is_not_used() -> None:
    assert vocabulary() == sorted(set(vocabulary()))
    assert set(vocabulary()) <= used_words()


def test_terms_of_the_glossary_are_used_by_the_code() -> None:
    sources = "\n".join(
        path.read_text("utf-8") for package in BOUNDS for path in (ROOT / package).rglob("*.py")
    ).lower()
    unused = [
        term
        for term in glossary()
        if term.replace(" ", "_") not in sources
        and term not in sources
        and not glossary()[term] <= used_words()
    ]
    assert not unused


def test_no_further_function_is_called_by_a_participle() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in public_functions()
        if re.fullmatch(r"[a-z]{3,}(?<!e)(?:ed|ing)", name) and name not in PARTICIPLE_LIKE
    ]
    assert len(found) <= PARTICIPLES_MAX, "\n".join(found)


# They end like a participle, and are nouns, verbs or adjectives.
PARTICIPLE_LIKE: Final = frozenset(
    {"embed", "feed", "heed", "need", "ping", "ring", "seed", "setting", "string"}
)
