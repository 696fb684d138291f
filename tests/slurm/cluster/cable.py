"""cable.py SECONDS PID NAME PID NAME - joins two processes' networks by a cable with a latency.

The kernel's own (netem) is a module that machines seldom have.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from contextlib import suppress

ends, frames = [], []
for pid, name in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    assert ctypes.CDLL(None).setns(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), 0) == 0
    ends.append(os.open("/dev/net/tun", os.O_RDWR))
    # TUNSETIFF: a device of whole frames (IFF_TAP), without headers of its own (IFF_NO_PI).
    fcntl.ioctl(ends[-1], 0x400454CA, struct.pack("16sH", name.encode(), 0x1002))
while True:
    wait = max(0.0, frames[0][0] - time.monotonic()) if frames else None
    for end in select.select(ends, [], [], wait)[0]:
        due = time.monotonic() + float(sys.argv[1])
        frames.append((due, ends[end == ends[0]], os.read(end, 65536)))
    while frames and frames[0][0] <= time.monotonic():
        with suppress(OSError):  # that end is down, and the frame is lost
            os.write(*frames.pop(0)[1:])
