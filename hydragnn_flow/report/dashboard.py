"""optuna-dashboard on a run that may still be going, without any change to the run."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hydragnn_flow.config.origins import JOURNAL
from hydragnn_flow.errors import InputError, lacking
from hydragnn_flow.report.trials_frame import read_study

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"
"""Address on which the dashboard listens: only this machine, since it has no authentication."""
_REFUSAL = "This dashboard only shows the run; nothing can be changed here."


def dashboard_server(run_directory: Path, port: int | None = None) -> WSGIServer:
    """Return a web server that shows a run's trials in optuna-dashboard, but cannot change them.

    The server already listens; ``serve_forever`` starts it. It reads new records of the study's
    journal as they come, and never writes to it.

    Parameters
    ----------
    run_directory
        Directory of a finished run, or of one still going.
    port
        Port on the loopback interface; by default 8080, or a free one if that is in use.

    Raises
    ------
    InputError
        If the search has not begun, the port cannot be used, or optuna-dashboard is not installed.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise InputError(lacking("optuna-dashboard", "dashboard")) from None
    read_study(run_directory)  # says what is wrong with the journal
    app = _reading_only(wsgi(JournalStorage(_Following(str(run_directory / JOURNAL)))))
    try:
        return _listening(app, 8080 if port is None else port)
    except OSError as error:
        if port is None:
            return _listening(app, 0)
        said = f"cannot be used ({error.strerror}); name another, or leave it out"
        raise InputError(f"--port {port}: {said}") from None


def addresses(server: WSGIServer) -> tuple[str, str]:
    """Return the dashboard's URL on this machine, and an `ssh` command to reach it from another.

    The command forwards the port to another machine, where the same address then works.
    """
    port = server.server_port
    tunnel = f"ssh -N -L {port}:{HOST}:{port} {socket.gethostname()}"
    return f"http://{HOST}:{port}/dashboard", tunnel


class _Following(JournalFileBackend):
    """Journal backend that only reads; another process may append records at the same time."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise RuntimeError(_REFUSAL)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # Ctrl-C does not wait for a browser


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        return None


def _listening(app: WSGIApplication, port: int) -> WSGIServer:
    return make_server(HOST, port, app, server_class=_Server, handler_class=_Quiet)


def _reading_only(app: WSGIApplication) -> WSGIApplication:
    """Return the application wrapped so that every request but GET and HEAD gets status 403."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environ, start)
        start("403 Forbidden", [("Content-Type", "application/json")])
        return [json.dumps({"reason": _REFUSAL}).encode()]

    return answer
