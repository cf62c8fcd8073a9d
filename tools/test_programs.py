"""The programs that tests drive: which are missing, and how they come here.

`python tools/test_programs.py [NAME …]` installs the missing ones where it may (root, with apt-get) and says in a line
each what stays left out. It never fails: a test without its program is skipped, or fails where `CI` is set
(tests/support/programs.py).
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Program(NamedTuple):
    """What some tests drive beside Python."""

    tests: str
    """What is left out without it."""
    package: str
    """Debian's name."""
    commands: tuple[str, ...]
    probe: tuple[str, ...] = ()
    """Ends with 0 if the commands may do here what the tests want of them."""
    otherwise: str = ""
    """What helps if that is not so."""


MOUNTS = 'PATH="$PATH:/usr/sbin:/sbin" && losetup -f && unshare -m mount -t tmpfs tmpfs /mnt'
PROGRAMS = {
    "chromium": Program("the console in a browser", "chromium libatomic1", ("chromium",)),  # Playwright's Node needs it
    "node": Program("FutoIn's published clients", "nodejs", ("node",)),
    "npm": Program("fetching FutoIn's published clients", "npm", ("npm",)),
    "cargo": Program("Ockam's published Rust client", "cargo", ("cargo",)),
    "curl": Program("pages of the documentation that use curl", "curl", ("curl",)),
    "openssl": Program("TLS of Perper's listeners", "openssl", ("openssl",)),
    "postgresql": Program("the outbox in PostgreSQL", "postgresql", ("initdb", "pg_ctl")),
    "strace": Program(
        "disks that fail",
        "strace",
        ("strace",),
        ("strace", "-qq", "-o", os.devnull, "true"),
        "run as somebody who may trace processes",
    ),
    "mounts": Program(
        "power cuts and full disks",
        "e2fsprogs mount",
        ("mount", "umount", "mkfs.ext4", "losetup"),
        ("sh", "-c", MOUNTS),
        "run as root, where file systems may be mounted",
    ),
    "kafka": Program(
        "the log on real Kafka brokers",
        "maven default-jre-headless",
        ("mvn",),
        (sys.executable, str(Path(__file__).with_name("kafka_brokers.py")), "java"),
        "install a Java of version 17 or newer",
    ),
    "javac": Program("the Java engine of Spark", "default-jdk-headless", ("javac", "java")),
    "systemd-analyze": Program("the check of the systemd unit", "systemd", ("systemd-analyze",)),
}
FOLDERS = ("/usr/sbin", "/sbin", "/usr/lib/postgresql/*/bin")
"""Where Debian keeps programs that are in nobody's, or only in root's PATH."""


def find(command: str) -> str | None:
    """The path of a command."""
    beside = [folder for pattern in FOLDERS for folder in sorted(glob.glob(pattern), reverse=True)]
    return shutil.which(command) or shutil.which(command, path=os.pathsep.join(beside))


def absent(name: str) -> list[str]:
    """The commands that are not here."""
    return [command for command in PROGRAMS[name].commands if find(command) is None]


def lacking(name: str) -> str:
    """One line: what is left out, why, and what would help; empty if nothing is missing."""
    program = PROGRAMS[name]
    if commands := absent(name):
        return f"{program.tests}: no {', '.join(commands)} here; to include it: {_install(program)}"
    if program.probe and subprocess.run(program.probe, capture_output=True, check=False).returncode != 0:
        return f"{program.tests}: {program.commands[0]} does not work here; to include it: {program.otherwise}"
    return ""


def rust_asked() -> bool:
    """Building the Rust client takes minutes, so nobody gets it unasked."""
    return in_ci() or os.environ.get("HEADRACE_RUST") == "1"


def in_ci() -> bool:
    """Whether a missing part is a failure."""
    return os.environ.get("CI", "") not in ("", "0", "false")


def main(names: list[str]) -> None:
    wanted = names or [name for name in PROGRAMS if name != "cargo" or rust_asked()]
    install([PROGRAMS[name] for name in wanted if absent(name)])
    for line in filter(None, map(lacking, wanted)):
        print(f"missing: {line}" if in_ci() else f"left out: {line}", flush=True)
    if not names and not rust_asked():
        print("left out unless already built: Ockam's published Rust client; to include it: HEADRACE_RUST=1 make test")


def install(programs: list[Program]) -> None:
    """Where it may; each by itself, so that one that cannot be had keeps no other away."""
    if not programs or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
    subprocess.run(["apt-get", "update", "-qq"], **quiet)
    for program in programs:
        print(f"installing {program.package} for tests: {program.tests}", flush=True)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *program.package.split()]
        subprocess.run(command, **quiet)


def _install(program: Program) -> str:
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install {program.package}"


if __name__ == "__main__":
    main(sys.argv[1:])
