"""Count constructions that are hard to read, in docstrings, comments and texts of the product.

    python -m tests.wording [--show] [PATH...]

It prints the number of them for each package, and fails if a package has more than its bound, or if a
docstring begins with a fragment. Bounds may only be lowered. A hit is a question: read the sentence aloud,
and say it as you would to a colleague who is new. `--show` prints each hit with its place.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.rooms import ROOT
from tests.sources import parse

# Hits in each package, as measured. Lower a bound when you have reworded something.
BOUNDS: Final = {
    "ca": 0,
    "runtime": 4,
    "web": 6,
    "metadata": 13,
    "api": 6,
    "coordinator": 39,
    "node": 11,
    "deploy": 14,
    "client/filestore_client": 6,
}
SENTENCE_WORDS_MAX: Final = 32
TEXT_WORDS_MIN: Final = 4  # a shorter text is a name or a word
FRAGMENT: Final = re.compile(
    r"(?:Of|The same|So|By|Once|Also|Likewise|Those|That|What|Who|Whom|Where|And|As|In|To|From|With|Not)\b"
)
PATTERNS: Final = tuple(
    re.compile(pattern, re.MULTILINE | re.IGNORECASE)
    for pattern in (
        r"\b(?:who|what|which|where)(?:so)?ever\b",
        r"\b(?:nobody|somebody|anybody)\b",  # name the process or the user
        r"\b(?:is|are|was|were|be|been) told\b|\btells? (?:of|whether|that|what|how)\b",  # reported
        r"\b(?:is|are|was|were|be) (?:not )?taken\b|\btakes? (?:none|no more)\b",  # accepted
        r"\banew\b",  # again
        r"\b(?:for so long|so often|so many|so much|so long)\b(?! (?:that|as))",  # this many
        r"(?:^|[.;:] )(?:The same\b(?! \w)|(?:What|That|Who) (?:is|was|has|cannot|of)\b)|\blikewise\b",
        r"(?:^|[.;:] )Where (?:it|that|this|one|a|an|the|no|nobody|they)\b",  # if, when
        r"\b(?:by itself|by themselves|beside)\b",
        r"\b(?:of|from|to|by|behind) (?:which|whom)\b",
        r"\b(?:lies|stands|lay|stood) (?:in|at|on|behind|there)\b",  # is
        r"\bgoes? on\b|\b(?:is|are) had\b",  # continues
        r"\b(?:un)?heard\b|\bhears\b",  # received, answered
    )
)


class Text(NamedTuple):
    """A docstring, a comment or a string."""

    line: int
    is_docstring: bool
    words: str


def texts_of(source: str) -> Iterator[Text]:
    """Yield the docstrings, comments and longer strings of a Python source."""
    tree, docstrings = parse(source), set[int]()
    for found in ast.walk(tree):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(found, kinds) and (text := ast.get_docstring(found)) is not None:
            docstrings.add(found.body[0].lineno)
            yield Text(found.body[0].lineno, is_docstring=True, words=text)
    for found in ast.walk(tree):
        if not (isinstance(found, ast.Constant) and isinstance(found.value, str)):
            continue
        if found.lineno not in docstrings and len(found.value.split()) >= TEXT_WORDS_MIN:
            yield Text(found.lineno, is_docstring=False, words=found.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and len(token.string.split()) > TEXT_WORDS_MIN:
            yield Text(token.start[0], is_docstring=False, words=token.string.lstrip("# "))


def hits_in(words: str) -> list[str]:
    """Return the hard constructions, and the sentences that are too long."""
    found = [match.group().strip() for pattern in PATTERNS for match in pattern.finditer(words)]
    sentences = (each.split() for each in re.split(r"(?<=[.?!:;])\s", words))
    return found + [f"{len(each)} words" for each in sentences if len(each) > SENTENCE_WORDS_MAX]


def is_fragment(docstring: str) -> bool:
    """Return whether a docstring needs its code, or another one, to be understood."""
    return FRAGMENT.match(docstring) is not None


def check(paths: list[Path], *, shows: bool) -> tuple[int, list[str]]:
    """Return the number of hits below these paths, and the docstrings that begin with a fragment."""
    count, fragments = 0, list[str]()
    for path in sorted(
        found for each in paths for found in ([each] if each.is_file() else each.rglob("*.py"))
    ):
        for text in texts_of(path.read_text("utf-8")):
            place = f"{path.relative_to(ROOT)}:{text.line}: {' '.join(text.words.split())[:100]}"
            if text.is_docstring and is_fragment(text.words):
                fragments.append(place)
            hits = hits_in(text.words)
            count += len(hits)
            if shows and hits:
                print(f"{place} ({', '.join(hits)})")
    return count, fragments


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    shows = arguments[:1] == ["--show"]
    named = [(ROOT / each).resolve() for each in arguments[shows:]]
    wanted = named or [ROOT / package for package in BOUNDS]
    faults = []
    for path in wanted:
        count, fragments = check([path], shows=shows)
        bound = BOUNDS.get(str(path.relative_to(ROOT)))
        print(f"{count:>5}  {path.relative_to(ROOT)}")
        faults += [f"begins with a fragment: {each}" for each in fragments]
        if bound is not None and count > bound:
            faults.append(
                f"{path.relative_to(ROOT)}: {count} hits, at most {bound}: reword new texts (--show)"
            )
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
