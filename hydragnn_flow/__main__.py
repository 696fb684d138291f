"""Entry of the command line: an environment that it works in, then `cli`."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress


def main() -> None:
    """Run the command line; in Python's UTF-8 mode, which begins anew, if the locale is another.

    All files are in UTF-8, and other packages take the locale's word for it. What is printed is in
    the locale's encoding.
    """
    for number in range(3):  # a file in the place of a closed one would be printed to
        with suppress(OSError):
            os.fstat(number)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        encoding = getattr(sys.stdout, "encoding", "utf-8")  # a terminal may not have every sign
        os.environ.setdefault("PYTHONIOENCODING", f"{encoding}:replace")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    ended: list[int] = []
    atexit.register(_leave, ended)  # first of all, and so the last to be called
    try:
        from hydragnn_flow.cli import main as run

        run()
    except KeyboardInterrupt:  # while modules are imported
        print("stopped")
        sys.exit(130)
    except SystemExit as end:
        if isinstance(end.code, int):
            ended.append(end.code)
        raise


def _leave(ended: list[int]) -> None:
    """End the process now: the interpreter takes seconds to take apart what was imported."""
    with suppress(OSError, ValueError):  # which the interpreter says; a stream may be closed
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        if ended:
            os._exit(ended[0])


if __name__ == "__main__":
    main()
