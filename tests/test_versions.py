"""Versions that `run.yaml` keeps: those of packages that bring classes of a user's own too."""

import hashlib

from hydragnn_flow.config.base import import_class
from hydragnn_flow.versions import versions


def test_a_users_classes_are_recorded_with_their_versions(tmp_path, monkeypatch):
    installed = tmp_path / "theirs-1.2.3.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2.3\n")
    (installed / "top_level.txt").write_text("their_package\n")
    for name in ("their_package", "my_file"):
        (tmp_path / f"{name}.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("their_package:Mine", "my_file:Mine"):
        import_class(name)
    configuration = {
        "network": {"mpnn_type": "their_package:Mine"},
        "space": [{"choices": ["SchNet", "my_file:Mine", "never:Imported", 3]}],
        "name": "a: b",
    }
    added = {k: v for k, v in versions(configuration).items() if k not in versions()}
    file = hashlib.sha256((tmp_path / "my_file.py").read_bytes()).hexdigest()
    assert added == {"theirs": "1.2.3", "my_file": f"sha256 {file}"}


def test_a_module_whose_file_is_gone_does_not_stop_a_run(tmp_path, monkeypatch):
    (tmp_path / "gone_file.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_class("gone_file:Mine")
    (tmp_path / "gone_file.py").unlink()
    assert versions({"mpnn_type": "gone_file:Mine"}) == versions()
