import json
import os
import ssl
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

Command = Callable[..., SimpleNamespace]


def test_the_printed_settings_make_a_working_context(headrace: Command, tmp_path: Path) -> None:
    printed = headrace("tls", "self-signed", "--out", tmp_path / "tls", "--name", "hub.lan", "--name", "10.0.0.1").out
    files = tomllib.loads(printed)["tls"]
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files["certificate"], files["key"])
    assert os.stat(files["key"]).st_mode & 0o777 == 0o600


def test_files_that_exist_are_kept_unless_forced(headrace: Command, tmp_path: Path) -> None:
    assert headrace("tls", "self-signed", "--out", tmp_path).code == 0
    before = (tmp_path / "key.pem").read_bytes()
    refused = headrace("tls", "self-signed", "--out", tmp_path)
    assert (refused.code, "--force" in refused.err) == (1, True)
    assert (tmp_path / "key.pem").read_bytes() == before
    forced = headrace("tls", "self-signed", "--out", tmp_path, "--force", "--json")
    assert json.loads(forced.out)["days"] == 365
    assert (tmp_path / "key.pem").read_bytes() != before
