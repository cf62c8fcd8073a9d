"""Where an archive may live: a directory of this machine, or any path that Spark itself can write.

Paths are texts with "/" between their parts, as Spark takes them. On this machine what is put in place was synced
first; elsewhere (HDFS, S3 and whatever Hadoop knows) closing a file is what makes it last.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse


@dataclass(frozen=True)
class Entry:
    """Something in a directory."""

    name: str
    is_directory: bool
    size: int


def local_path(location: str | None) -> Path | None:
    """A location as a path of this machine; None when it is elsewhere (HDFS, S3)."""
    if not location:
        return None
    parsed = urlparse(location)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return None if len(parsed.scheme) > 1 else Path(location)


class LocalStorage:
    """Directories of this machine."""

    def list(self, directory: str) -> list[Entry]:
        """What is in a directory; nothing if there is no such directory."""
        try:
            with os.scandir(directory) as entries:
                return [Entry(entry.name, entry.is_dir(), entry.stat().st_size) for entry in entries]
        except FileNotFoundError:
            return []

    def put(self, source: str, target: str) -> None:
        """Move a whole file to where it is seen, in place of what stood there."""
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        sync(source)
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing if there is none."""
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    def settle(self, directory: str) -> None:
        """Make the names in a directory last."""
        sync(directory)

    def location(self, path: str) -> str:
        """A path as Spark takes it."""
        return f"file://{path}"  # Hadoop does not undo the escapes of a proper URI


class HadoopStorage:
    """Whatever Spark's own Hadoop can reach, asked through the driver's JVM: the same methods."""

    def __init__(self, spark: Any) -> None:
        self._hadoop = spark._jvm.org.apache.hadoop.fs
        self._configuration = spark._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._hadoop.Path(path)
        return place.getFileSystem(self._configuration), place

    def list(self, directory: str) -> list[Entry]:
        files, place = self._at(directory)
        if not files.exists(place):
            return []
        entries = files.listStatus(place)
        return [Entry(entry.getPath().getName(), entry.isDirectory(), entry.getLen()) for entry in entries]

    def put(self, source: str, target: str) -> None:
        files, place = self._at(target)
        files.mkdirs(place.getParent())
        files.delete(place, False)  # Hadoop's rename does not replace
        if not files.rename(self._hadoop.Path(source), place):
            raise OSError(f"{source} could not be renamed to {target}")

    def remove(self, path: str) -> None:
        files, place = self._at(path)
        files.delete(place, True)

    def settle(self, directory: str) -> None:
        """Closing a file did it."""

    def location(self, path: str) -> str:
        return path


Storage = LocalStorage | HadoopStorage


def storage_of(location: str, spark: Any) -> tuple[Storage, str]:
    """The file system of a location, and the location in its terms."""
    here = local_path(location)
    if here is not None:
        return LocalStorage(), str(here.absolute())
    return HadoopStorage(spark), location.rstrip("/")


def sync(path: str | Path) -> None:
    """Force a file, or the names in a directory, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
