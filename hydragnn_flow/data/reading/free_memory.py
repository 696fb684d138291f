"""How much memory the job this process belongs to may still use."""

from __future__ import annotations

from pathlib import Path

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_memory() -> float:
    """What the limits of this process's control groups leave [bytes]; infinite without one.

    Schedulers set them for jobs and containers; files in ``/dev/shm`` count, though the free space
    there does not show it. Control groups of version 1 are not asked.
    """
    if not _OWN.exists():
        return float("inf")
    lines = [line for line in _OWN.read_text().splitlines() if line.startswith("0::/")]
    groups = [_GROUPS / line.removeprefix("0::/") for line in lines]
    return min(
        (_left(above) for group in groups for above in (group, *group.parents)),
        default=float("inf"),
    )


def _left(group: Path) -> float:
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        numbers = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:  # the topmost group, or none at all
        return float("inf")
    # The cache of files counts as used, and makes room when it has to.
    return float(limit) - used + int(numbers["inactive_file"]) if limit != "max" else float("inf")
