"""A checksum over a whole zip archive, kept in its comment, where other readers of the archive pass over it.

An archive's own checksums cover its records only: a byte flipped in its directory can make a reader take one record for
another.
"""

import hashlib
import struct
from typing import BinaryIO

MARK = b"sha256:"
SEAL_BYTES = len(MARK) + 64
END_RECORD = struct.Struct("<4s16sH")
"""The end of an archive: its signature, what does not matter here, and the length of the comment that follows."""


def seal(file: BinaryIO) -> None:
    """Close an archive that has no comment with the checksum of all its bytes.

    Args:
        file: open for reading and writing.
    """
    at = file.seek(-END_RECORD.size, 2)
    signature, body, length = END_RECORD.unpack(file.read())
    if signature != b"PK\x05\x06" or length:
        raise ValueError("not an archive without comment")
    file.seek(at)
    file.write(END_RECORD.pack(signature, body, SEAL_BYTES))
    file.write(MARK + _checksum(file, at + END_RECORD.size))


def is_broken(file: BinaryIO, comment: bytes) -> bool:
    """Whether a sealed archive is not as it was sealed; False for one that never was.

    Args:
        file: open for reading.
        comment: what a reader of the archive takes for its comment; a seal cut short is still one.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - SEAL_BYTES))
    found = file.read()
    if not found.startswith(MARK):
        return bool(comment)
    return found[len(MARK) :] != _checksum(file, size - SEAL_BYTES)


def _checksum(file: BinaryIO, size: int) -> bytes:
    """Of the first `size` bytes, in hexadecimal; leaves the file at their end."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0:
        piece = file.read(min(size, 1 << 20))
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest().encode()
