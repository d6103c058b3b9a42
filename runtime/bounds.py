"""The bounds of every field that travels between members. Shared by the API, the log and both roles.

Values beyond them do not decode, so the state machine never gets a value that SQLite, a list or a disk cannot
handle: an entry that cannot be applied would end every coordinator, again at each start. The API's own limits
are narrower. Bounds may be widened, never narrowed: older logs must decode.

Tested by tests/unit/coordinator/machine/test_totals.py.
"""

from typing import Annotated

from msgspec import Meta

from ca.names import NAMES_MAX

COUNT_MAX = 2**53 - 1  # what JSON carries exactly, and far below SQLite's 2^63 even after a sum
TOTAL_BYTES_MAX = 2**62  # of all blobs together: a sum, so no field's bound keeps it below SQLite's 2^63
TEXT_CHARS_MAX = 1024
TOKEN_CHARS_MAX = 4096
PEM_CHARS_MAX = 32_768
WRAPPED_BYTES_MAX = 4096  # a P-256 key in PEM is 241 bytes, 270 wrapped
DOCUMENT_CHARS_MAX = 65_536  # JSON that is kept as text
NODES_MAX = 64  # holders of one blob, nodes of one placement
INSTANT_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999, which RFC 3339 can write
IDS_MAX = 500  # in one question
PARTS_MAX = 100  # partial uploads that one file is put together from
IMAGES_MAX = 200  # that one project is noted to need
LABEL_CHARS_MAX = 255
LIFE_SECONDS_MAX = 100 * 366 * 86_400  # of anything that expires: later times are equivalent to never
SPANS_MAX = 1024  # of one damaged copy: further ones are only not known to be wrong

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
MaybeOffset = Annotated[int, Meta(ge=-1, le=COUNT_MAX)]  # -1 for none
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Token = Annotated[str, Meta(max_length=TOKEN_CHARS_MAX)]
Document = Annotated[str, Meta(max_length=DOCUMENT_CHARS_MAX)]
Pem = Annotated[str, Meta(max_length=PEM_CHARS_MAX)]
WrappedKey = Annotated[bytes, Meta(max_length=WRAPPED_BYTES_MAX)]
Instant = Annotated[int, Meta(ge=0, le=INSTANT_MS_MAX)]
LifeSeconds = Annotated[int, Meta(ge=1, le=LIFE_SECONDS_MAX)]
Label = Annotated[str, Meta(max_length=LABEL_CHARS_MAX)]
Names = Annotated[list[Text], Meta(max_length=NAMES_MAX)]
NodeIds = Annotated[list[Text], Meta(max_length=NODES_MAX)]
Ids = Annotated[list[Text], Meta(max_length=IDS_MAX)]
Parts = Annotated[list[Text], Meta(min_length=1, max_length=PARTS_MAX)]
Span = tuple[Count, Count]  # of bytes: the first, and the one after the last
Spans = Annotated[list[Span], Meta(max_length=SPANS_MAX)]
