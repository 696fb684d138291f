"""Entry of the command line: prepares the environment, then runs `cli`."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

from hydragnn_flow.lean import import_lean


def main() -> None:
    """Run the `hydragnn-flow` command in Python's UTF-8 mode.

    If the locale has another encoding, the interpreter first restarts itself in that mode. All
    files of this package are in UTF-8, but other packages follow the locale. Output stays in the
    encoding of the locale.
    """
    for number in range(3):  # else a file opened later would get a closed stream's number
        with suppress(OSError):
            os.fstat(number)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        encoding = getattr(sys.stdout, "encoding", "utf-8")  # a terminal may lack characters
        os.environ.setdefault("PYTHONIOENCODING", f"{encoding}:replace")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    ended: list[int] = []
    atexit.register(_leave, ended)  # registered first, so called last
    import_lean()
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
    """Flush the output, and end the process at once with the exit code in ``ended``, if any.

    The interpreter would take seconds to unload the imported modules.
    """
    with suppress(OSError, ValueError):  # the interpreter reports these; a stream may be closed
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        if ended:
            os._exit(ended[0])


if __name__ == "__main__":
    main()
