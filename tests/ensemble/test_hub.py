"""Ensembles on the Hugging Face hub: sent by `export --push`, fetched by `Ensemble.load`.

The hub is a server on this machine that answers as huggingface.co does.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from ensemble_cases import untrained_ensemble

pytest.importorskip("huggingface_hub")
COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """Requests that `huggingface_hub` makes for one model, and their answers."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]] = {}
    known = False

    def do_POST(self):
        body, cls = self._body(), type(self)
        if self.path == "/api/repos/create":
            cls.known = True
            self._answer({"url": f"{self.server.url}/org/name"})
        elif self.path == "/api/validate-yaml":
            cls.card = json.loads(body)["content"]
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            named = [{"path": one["path"]} for one in json.loads(body)["files"]]
            same = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer({"files": [one | same for one in named]})
        else:
            assert "/commit/" in self.path
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    cls.files[line["value"]["path"]] = content
            url = f"{self.server.url}/org/name/commit/{COMMIT}"
            self._answer({"success": True, "commitOid": COMMIT, "commitUrl": url})

    def do_GET(self):
        _, _, name = self.path.partition(f"/resolve/{COMMIT}/")
        if name and name in self.files:
            self._send(self.files[name])
        elif self.known and self.path.startswith("/api/models/org/name/tree/"):
            sizes = {name: len(content) for name, content in self.files.items()}
            kind = {"type": "file", "oid": COMMIT}
            self._answer([{"path": name, "size": size} | kind for name, size in sizes.items()])
        elif self.known and self.path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": name} for name in self.files]
            self._answer({"id": "org/name", "sha": COMMIT, "siblings": siblings})
        else:
            self._answer({"error": "Repository not found"}, 404)

    do_HEAD = do_GET

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, value, code=200):
        self._send(json.dumps(value).encode(), code)

    def _send(self, content, code=200):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def local_hub(tmp_path):
    """The hub, and a function that runs Python in a process that asks no other."""

    class Own(Hub):
        files: ClassVar[dict[str, bytes]] = {}

    def run(code):
        ours = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "hf_x"}
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | ours
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment | {"HF_HUB_DISABLE_XET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Own, run
        server.shutdown()


_BOTH_WAYS = """
import sys
from ase.build import bulk
from hydragnn_flow import Ensemble
from hydragnn_flow.__main__ import main

sys.argv = "hydragnn-flow export run out --push org/name".split()
try:
    main()
except SystemExit as ended:
    assert not ended.code
fetched, own = Ensemble.load("hf://org/name"), Ensemble.load("out")
one, other = (each.predict(bulk("Cu", cubic=True)).graphs for each in (fetched, own))
assert one.equals(other)
"""


def test_an_ensemble_is_sent_and_fetched_with_all_its_files(alloy_store, local_hub, tmp_path):
    run = untrained_ensemble(tmp_path / "run", alloy_store, 2)
    (run / "run.yaml").write_text("name: copper\n")
    server, python = local_hub
    ended = python(_BOTH_WAYS)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.splitlines()[-1].endswith(f"/org/name/commit/{COMMIT}")
    assert server.card.startswith("---\nlibrary_name: hydragnn_flow\n")


_WRONG = """
from hydragnn_flow import Ensemble, InputError
from hydragnn_flow.ensemble.hub import make

for action in (lambda: Ensemble.load("hf://org/name"), lambda: make("no/such/name")):
    try:
        action()
    except InputError as error:
        print(error)
"""


def test_what_the_hub_does_not_have_is_told_in_a_sentence(local_hub):
    ended = local_hub[1](_WRONG)
    missing, refused = ended.stdout.splitlines()
    assert missing.startswith("hf://org/name: cannot be fetched (")
    assert refused.startswith("no/such/name: the hub refused it (")
