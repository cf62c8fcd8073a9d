"""A real S3 server on loopback, from the Python registry: what stores under `s3:` are tried on."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer
from pyarrow import fs


class S3Server:
    """Started; it keeps everything in memory."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it says every request
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.address = "{}:{}".format(*self._server.get_host_and_port())

    def bucket(self) -> str:
        """The URI of a folder in a new one."""
        name = uuid.uuid4().hex
        options = f"endpoint_override={self.address}&scheme=http&region=us-east-1&allow_bucket_creation=true"
        filesystem, path = fs.FileSystem.from_uri(f"s3://user:secret@{name}?{options}")
        filesystem.create_dir(path)
        return f"s3://user:secret@{name}/folder?{options}"

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()
