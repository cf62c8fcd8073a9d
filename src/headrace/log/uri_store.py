"""A store under a URI: `file:///a/folder/all/hubs/see`, `s3://bucket/folder`, and what else `pyarrow.fs` knows.

Options of S3 stand in the URI, as `pyarrow.fs` takes them: `s3://bucket/folder?region=eu-central-1`, and
`endpoint_override=host:port` and `scheme=http` for another server than Amazon's. Credentials come from where Amazon's
own tools take them: the environment, `~/.aws`, or the machine's role.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from headrace.errors import BadConfig
from headrace.log.disk import PRIVATE, OsDisk
from headrace.log.spool import SpooledBlob
from headrace.log.store import CHUNK_BYTES, QUARANTINE, DirectoryStore, Store


def open_uri(uri: str, folder: str) -> Store:
    """The store in a folder below a URI."""
    scheme = urlsplit(uri).scheme
    if scheme == "file":
        return FolderStore(Path(unquote(urlsplit(uri).path)) / folder)
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadConfig(f"log.kafka.store is {uri!r}: {error}; such as file:///folder or s3://bucket/folder") from error
    return UriStore(filesystem, f"{path.rstrip('/')}/{folder}")


class FolderStore(DirectoryStore):
    """A directory that several hubs see. Nobody locks it: their names differ."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        super().__init__(_UnlockedDisk(root))

    def since(self, mark: int) -> Iterator[str | None]:
        """Files that hubs which died have left unfinished are among them."""
        return self._inside("")

    def _inside(self, folder: str) -> Iterator[str]:
        for last in self.disk.list(folder):
            name = f"{folder}/{last}" if folder else last
            inside = list(self._inside(name))
            yield from inside or [name]


class _UnlockedDisk(OsDisk):
    def __init__(self, root: Path) -> None:
        super().__init__(root, lock=-1)

    def local_path(self, path: str) -> str | None:
        return None

    def handover(self) -> tuple[str, int] | None:
        return None

    def close(self) -> None:
        """There is no lock to let go of."""


class UriStore(Store):
    """A folder of a file system that Arrow knows, and in which a file is there as a whole or not at all, such as S3."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        self._root = root

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def create(self, name: str) -> SpooledBlob:
        return SpooledBlob(self, name)

    def copy_in(self, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        try:
            with self._fs.open_output_stream(self._path(name)) as stream:
                for chunk in chunks:
                    stream.write(chunk)
        except BaseException:
            with contextlib.suppress(OSError):  # what there is of it may be there
                self.delete(name)
            raise
        return name

    def get(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def get_range(self, name: str, offset: int, size: int) -> bytes:
        with self._fs.open_input_file(self._path(name)) as file:
            data: bytes = file.read_at(size, offset)
        return data

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._fs.open_input_stream(self._path(name)) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

    def map(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self.get(name))

    def size(self, name: str) -> int:
        info = self._fs.get_file_info(self._path(name))
        if info.type is not fs.FileType.File:
            raise FileNotFoundError(name)
        size: int = info.size
        return size

    def list(self, folder: str, *, tidy: bool = False) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{folder}".rstrip("/"), allow_not_found=True))
        return sorted(info.base_name for info in found)

    def names(self, folder: str = "") -> Iterator[str]:
        """In one request, and without the empty folders that such stores keep."""
        place = f"{self._root}/{folder}".rstrip("/")
        found = self._fs.get_file_info(fs.FileSelector(place, allow_not_found=True, recursive=True))
        return (info.path.removeprefix(f"{self._root}/") for info in found if info.type is fs.FileType.File)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._path(name))

    def delete_all(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(f"{self._root}/{folder}")

    def set_aside(self, name: str) -> None:
        self.copy_in(f"{QUARANTINE}/{name.rpartition('/')[2]}", self.chunks(name))
        self.delete(name)

    def local_path(self, name: str) -> str | None:
        return None

    def handover(self) -> tuple[str, int] | None:
        return None

    def close(self) -> None:
        """There is nothing to let go of."""
