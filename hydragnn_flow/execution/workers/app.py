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
    from parsl.app.errors import RemoteExceptionWrapper
    from parsl.executors.execute_task import execute_task
    from parsl.serialize import serialize

    raised = False
    try:
        answer = serialize(execute_task(base64.b64decode(request["task"])))
    except Exception:
        raised, answer = True, serialize(RemoteExceptionWrapper(*sys.exc_info()))
    return {"raised": raised, "answer": base64.b64encode(answer).decode()}
