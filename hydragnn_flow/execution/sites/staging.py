"""Staging: copies of the Python environment on the nodes' own disks.

Thousands of processes that import torch from a shared file system slow it down for themselves and
all other users. The driver packs its environment once, into one archive. When a block (batch job)
starts, each node unpacks it into its scratch and starts its workers from there. A node that cannot
do so says why, and starts its workers from the shared file system.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from hydragnn_flow import files
from hydragnn_flow.errors import InputError

ARCHIVE = "environment.tar"
SCRIPT = "environment.sh"
_RECORD = "environment.json"
# Sourced by the shell that starts the workers of a node. When a Slurm job starts, it runs with
# `broadcast`. It is POSIX, since PBS starts workers with sh.
_SH = """\
# Puts this node's copy of the Python environment first on the PATH.
hf_archive={archive}
hf_sum={sum}
hf_to={to}
if [ "$1" = broadcast ]; then
  srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 mkdir -p "$(dirname "$hf_to")"
  sbcast --force "$hf_archive" "$hf_to.tar"
  exit
fi
hf_unpack() {{
  [ -O "$hf_to" ] && [ -e "$hf_to/.complete" ] && return
  rm -rf "$hf_to" && mkdir -m 700 "$hf_to" || return
  hf_from=$hf_archive
  [ -O "$hf_to.tar" ] && hf_from=$hf_to.tar
  if ! echo "$hf_sum  $hf_from" | sha256sum --check --status; then
    echo "$hf_from is not what was packed" >&2
    return 1
  fi
  tar -xf "$hf_from" -C "$hf_to" && touch "$hf_to/.complete"
}}
# The lock is for blocks that start on the same node together.
if (
  umask 077
  mkdir -p "$(dirname "$hf_to")" && exec 9>>"$hf_to.lock" && flock 9 || exit
  hf_unpack || {{ rm -rf "$hf_to"; false; }}
  hf_done=$?
  rm -f "$hf_to.tar"
  exit $hf_done
); then
  PATH=$hf_to/bin:$PATH
else
  echo "$(hostname): has no copy of the environment in $hf_to; workers use the shared one" >&2
fi
"""


def place_of(environment: str | None, scratch: str | None, site: str) -> Path | None:
    """Return the directory of a node's own copy of the Python environment; None for no copy.

    Parameters
    ----------
    environment
        Value of the option `environment`: `stage` for the scratch, `shared` or None for no copy, or
        a directory of each node.
    scratch
        Scratch directory of the site's nodes.
    site
        Name of the site, for messages.

    Raises
    ------
    InputError
        If the nodes have no scratch, or the directory is relative.
    """
    if environment in (None, "shared"):
        return None
    place = scratch if environment == "stage" else environment
    if place is None:
        raise InputError(
            f"site {site}: its nodes have no scratch for `environment: stage`; give a directory"
        )
    if not Path(place).is_absolute():
        raise InputError(f"site {site}: environment: must be `stage`, `shared` or an absolute path")
    return Path(place)


def is_environment() -> bool:
    """Return whether this Python is that of a virtual or conda environment, not the system's."""
    return sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()


def pack_environment(directory: Path, place: Path) -> None:
    """Pack this Python environment, and write the script that unpacks it on a node.

    An existing archive of the same packages is kept.

    Parameters
    ----------
    directory
        Directory for archive and script; visible to the nodes.
    place
        Directory of each node for its copy.

    Raises
    ------
    InputError
        If Python is not in a virtual or conda environment, or the environment cannot be packed.
    """
    prefix = Path(sys.prefix)
    if not is_environment():
        raise InputError(
            f"environment: {prefix} is the system's Python; install in a virtual or conda "
            "environment to have it staged"
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive, record = directory / ARCHIVE, directory / _RECORD
    packages = _packages()
    known = json.loads(record.read_bytes()) if record.is_file() and archive.is_file() else {}
    if known.get("packages") != packages:
        print(f"packing {prefix} for the nodes", file=sys.stderr)
        known = {"packages": packages, "sha256": _pack(prefix, archive)}
        files.write_json(record, known)
    script = _SH.format(
        archive=shlex.quote(str(archive.absolute())),
        sum=known["sha256"],
        to=shlex.quote(str(place / f"hydragnn_flow-{known['sha256'][:16]}")),
    )
    files.write_text(directory / SCRIPT, script)


def _packages() -> str:
    """Return a fingerprint of this environment: its path, packages and times of installation."""
    installed = Path(sysconfig.get_path("purelib")).glob("*.dist-info")
    since = sorted((package.name, package.stat().st_mtime_ns) for package in installed)
    return hashlib.sha256(repr((sys.prefix, since)).encode()).hexdigest()


def _pack(prefix: Path, archive: Path) -> str:
    """Pack the directory ``prefix`` into the file ``archive``; return the file's SHA-256."""
    temporary = archive.with_suffix(".tmp")
    try:
        _run("tar", "-cf", str(temporary), "-C", str(prefix), ".")
        digest = _run("sha256sum", str(temporary)).split()[0]
        temporary.replace(archive)
    finally:
        temporary.unlink(missing_ok=True)
    return digest


def _run(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if ran.returncode:
        said = ran.stderr.strip().splitlines()[-1:] or [f"{command[0]} ended with {ran.returncode}"]
        raise InputError(f"environment: cannot be packed ({said[0]}); leave it out of site.yaml")
    return ran.stdout
