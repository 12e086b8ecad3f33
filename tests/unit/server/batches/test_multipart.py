"""Tests of `FormReader`: a form is read the same wherever its pieces end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.server.batches import limits
from jitney.server.batches.multipart import BadForm, FormReader, PartBegin, boundary_of

BOUNDARY = b"bound"
HEAD = b'Content-Disposition: form-data; name="%b"\r\n\r\n'


def form(*contents: bytes) -> bytes:
    parts = b"".join(
        b"--bound\r\n" + HEAD % b"f%d" % number + content + b"\r\n"
        for number, content in enumerate(contents)
    )
    return parts + b"--bound--\r\n"


def read(pieces: list[bytes]) -> dict[str, bytes]:
    reader = FormReader(BOUNDARY)
    found: dict[str, bytes] = {}
    name = ""
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, PartBegin):
                name = event.name
                found[name] = b""
            else:
                assert isinstance(event, bytes)
                found[name] += event
    assert reader.is_over
    return found


@given(
    contents=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([b"\r\n--boun", b"\r\n--", b"--bound", b"\r\n", b"\r\r\n--bounc"]),
        ),
        max_size=4,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=30),
)
def test_any_cut_gives_the_same_fields(contents: list[bytes], cuts: list[int]) -> None:
    """Guards content: no byte is lost, added, or taken for a boundary."""
    contents = [each for each in contents if b"\r\n--bound" not in b"\r\n" + each]
    whole = form(*contents)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert read(pieces) == {f"f{number}": each for number, each in enumerate(contents)}


def test_a_reader_holds_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory: of a file, no more than a boundary is held back."""
    reader = FormReader(BOUNDARY)
    reader.feed(b"--bound\r\n" + HEAD % b"file")
    given_bytes = returned = 0
    for _ in range(100):
        piece = b"\r\n--boun" * 1000
        given_bytes += len(piece)
        for event in reader.feed(piece):
            assert isinstance(event, bytes)
            returned += len(event)
        assert given_bytes - returned < len(b"\r\n--bound")


@pytest.mark.parametrize(
    "content",
    [
        b"x--bound\r\n",
        b"\r\n\r\n--bound\r\n",
        b"--boundary\r\n",
        b"--bound\r\nContent-Type: text/plain\r\n\r\n",
        b"--bound\r\nContent-Disposition: form-data\r\n\r\n",
        b'--bound\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n',
        b"--bound\r\n" + b"x" * limits.PART_HEADER_BYTES_MAX,
        form(*[b""] * (limits.FORM_FIELDS_MAX + 1)),
    ],
)
def test_what_is_no_form_is_refused(content: bytes) -> None:
    """Guards against what readers could understand in two ways, and against endless forms."""
    with pytest.raises(BadForm):
        FormReader(BOUNDARY).feed(content)


def test_names_of_fields_and_files() -> None:
    """Guards names: with a filename it is a file, and the order of the two does not matter."""
    for head in (b'name="a"; filename="b c"', b'filename="b c"; name="a"'):
        reader = FormReader(BOUNDARY)
        events = reader.feed(b"--bound\r\ncontent-disposition: form-data; " + head + b"\r\n\r\n")
        assert events == [PartBegin("a", "b c")]


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
    ],
)
def test_the_boundary_is_in_the_type(kind: str, boundary: bytes) -> None:
    """Guards clients that write it in either way."""
    assert boundary_of(kind) == boundary
    for wrong in ("application/json", "multipart/form-data", f"{kind}{'x' * 80}", ""):
        if wrong.endswith("x") and '"' in wrong:
            continue
        with pytest.raises(BadForm):
            boundary_of(wrong)
