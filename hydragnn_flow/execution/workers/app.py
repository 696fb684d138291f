"""Call of a Parsl app, in a trainer process of a node."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Any


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Call an app's function; return its result, or the error that it raised, in text form.

    Parameters
    ----------
    request
        ``task``: function and arguments, serialised by Parsl and encoded as base64.
    """
    from hydragnn_flow.execution.parsl_internals import (
        RemoteExceptionWrapper,
        execute_task,
        serialize,
    )

    raised = dict[str, Any]()
    try:
        answer = serialize(execute_task(base64.b64decode(request["task"])))
    except Exception:
        raised["raised"] = True  # ends the process, whose device may be lost for good
        answer = serialize(RemoteExceptionWrapper(*sys.exc_info()))
    return {"answer": base64.b64encode(answer).decode(), **raised}
