"""How numbers are told to people. No I/O here."""


def counted(count: int, one: str, many: str) -> str:
    """`1 node takes`, `2 nodes take`: a number with the words that go with it."""
    return f"{count} {one if count == 1 else many}"
