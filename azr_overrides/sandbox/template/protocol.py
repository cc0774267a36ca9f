"""Bytes between the trainer, the template process and the child.

Control messages (trainer <-> template, one SEQPACKET each) are trusted. Frames (child -> trainer, one a
result) are not: the program runs in the process that writes them, so every byte may be forged. A frame can
only ever become a status and a piece of text; anything malformed makes the whole answer PROTOCOL.
"""

import struct

# trainer -> template: START carries the child's end of a socket pair as ancillary data.
START = struct.Struct("!cQQII")  # b"R", job id, address space in bytes, CPU seconds, wall milliseconds
KILL = struct.Struct("!cQ")  # b"K", job id
# template -> trainer
EXIT = struct.Struct("!cQcidddQ")  # b"X", job id, cause, wait status, user s, system s, wall s, max RSS in KiB
EXITED, OVERDUE, KILLED, NOT_FORKED = b"-", b"W", b"K", b"F"  # causes

# trainer -> child: length, then a dict as marshal writes it, which costs a fresh child less than JSON. child
# -> trainer: header, then UTF-8 text.
REQUEST_LENGTH = struct.Struct("!I")
FRAME_HEADER = struct.Struct("!BHI")  # tag, index of the input, length of the text
OK, EXCEPTION, MEMORY, BAD_INPUT, BAD_VALUE, OUTPUT_LIMIT = range(1, 7)
MAX_ERROR_TEXT = 400


class ProtocolError(ValueError):
    """The bytes are not what an honest child sends."""


class FrameParser:
    """Incremental parser of the frames of one child: exactly ``count`` frames, in order, then nothing."""

    def __init__(self, count: int, max_text: int) -> None:
        self._count = count
        self._max_text = max(max_text, MAX_ERROR_TEXT)
        self._buffer = bytearray()
        self.frames: list[tuple[int, str]] = []  # (tag, text) by input

    @property
    def complete(self) -> bool:
        return len(self.frames) == self._count

    def feed(self, data: bytes) -> None:
        """Take the next bytes, however they were cut. Raises ProtocolError."""
        self._buffer += data
        while len(self._buffer) >= FRAME_HEADER.size:
            tag, index, length = FRAME_HEADER.unpack_from(self._buffer)
            if self.complete or index != len(self.frames) or not OK <= tag <= OUTPUT_LIMIT:
                raise ProtocolError("unexpected frame")
            if length > (self._max_text if tag == OK else MAX_ERROR_TEXT):
                raise ProtocolError("frame is too long")
            end = FRAME_HEADER.size + length
            if len(self._buffer) < end:
                return
            try:
                text = self._buffer[FRAME_HEADER.size : end].decode()
            except UnicodeDecodeError as error:
                raise ProtocolError("frame is not UTF-8") from error
            self.frames.append((tag, text))
            del self._buffer[:end]
        if self.complete and self._buffer:
            raise ProtocolError("bytes after the last frame")

    def finish(self) -> None:
        """The child has ended. Raises ProtocolError if it left half a frame behind."""
        if self._buffer:
            raise ProtocolError("truncated frame")
