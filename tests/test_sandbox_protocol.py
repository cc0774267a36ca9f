"""Frames are hostile bytes: whatever they are, the parser ends with statuses and text, or with ProtocolError."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr_overrides.sandbox.template import protocol
from azr_overrides.sandbox.template.protocol import FrameParser, ProtocolError

MAX_TEXT = 2000


def frame(tag: int, index: int, text: bytes) -> bytes:
    return protocol.FRAME_HEADER.pack(tag, index, len(text)) + text


def parse(data: bytes, count: int, cuts: list[int]) -> list[tuple[int, str]]:
    parser = FrameParser(count, MAX_TEXT)
    positions = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in zip(positions, positions[1:], strict=False):
        parser.feed(data[start:end])
    parser.finish()
    return parser.frames


TEXTS = st.lists(st.text(max_size=60), min_size=1, max_size=5)
CUTS = st.lists(st.integers(min_value=0, max_value=500), max_size=8)


@given(TEXTS, CUTS)
def test_frames_are_read_however_they_are_cut(texts, cuts):
    encoded = [text.encode("utf-8", "replace") for text in texts]
    data = b"".join(frame(protocol.OK, index, body) for index, body in enumerate(encoded))
    assert parse(data, len(texts), cuts) == [(protocol.OK, body.decode()) for body in encoded]


@settings(max_examples=500)
@given(st.binary(max_size=300), st.integers(1, 4), CUTS)
def test_random_bytes_never_become_more_than_text(data, count, cuts):
    try:
        frames = parse(data, count, cuts)
    except ProtocolError:
        return
    assert len(frames) <= count
    assert all(protocol.OK <= tag <= protocol.OUTPUT_LIMIT and type(text) is str for tag, text in frames)


@settings(max_examples=500)
@given(TEXTS, st.data())
def test_a_damaged_stream_yields_a_prefix_or_an_error(texts, data):
    encoded = [text.encode("utf-8", "replace") for text in texts]
    stream = bytearray(b"".join(frame(protocol.OK, index, body) for index, body in enumerate(encoded)))
    position = data.draw(st.integers(0, len(stream) - 1))
    stream[position] ^= data.draw(st.integers(1, 255))
    try:
        frames = parse(bytes(stream), len(texts), [])
    except ProtocolError:
        return
    assert len(frames) <= len(texts)


@pytest.mark.parametrize(
    "data",
    [
        frame(protocol.OK, 1, b"1"),  # out of order
        frame(0, 0, b"") + frame(protocol.OK, 1, b""),
        frame(99, 0, b"1"),
        frame(protocol.OK, 0, b"1") + b"x",
        frame(protocol.OK, 0, b"1") + frame(protocol.OK, 0, b"1"),
        frame(protocol.OK, 0, b"\xff"),
        frame(protocol.OK, 0, b"1" * (MAX_TEXT + 1)),
        frame(protocol.EXCEPTION, 0, b"1" * (protocol.MAX_ERROR_TEXT + 1)),
        protocol.FRAME_HEADER.pack(protocol.OK, 0, 2**32 - 1),
        frame(protocol.OK, 0, b"1")[:-1],
    ],
)
def test_what_an_honest_child_does_not_send_is_an_error(data):
    with pytest.raises(ProtocolError):
        parse(data, 1, [])
