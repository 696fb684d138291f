"""Bob Jenkins' hash lookup3 (http://burtleburtle.net/bob/c/lookup3.c), which names FFS formats.

The library FFS, with which ADIOS2 encodes its metadata, calls each format by a hash of its
description. That makes the name a checksum: 64 bits that any change of the description would have
to meet.
"""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFF
_MIX = (4, 6, 8, 16, 19, 4)
_FINAL = (14, 11, 25, 16, 4, 14, 24)


def lookup3(content: bytes) -> tuple[int, int]:
    """The two 32-bit values of ``hashlittle2`` with both seeds zero."""
    a = b = c = (0xDEADBEEF + len(content)) & _MASK
    if not content:
        return c, b
    padded = content + b"\0" * (-len(content) % 12)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    for i in range(0, len(words) - 3, 3):
        a, b, c = (a + words[i]) & _MASK, (b + words[i + 1]) & _MASK, (c + words[i + 2]) & _MASK
        for shift in _MIX:
            a = ((a - c) & _MASK) ^ _rotate(c, shift)
            a, b, c = b, (c + b) & _MASK, a
        # Six turns of three names: a, b and c are where they began.
    a, b, c = ((old + new) & _MASK for old, new in zip((a, b, c), words[-3:], strict=True))
    for shift in _FINAL:
        c = ((c ^ b) - _rotate(b, shift)) & _MASK
        a, b, c = b, c, a
    a, b, c = c, a, b
    return c, b


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
