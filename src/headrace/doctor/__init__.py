"""What `headrace doctor` looks at: the data directory, the machine under it, what a hub will bind, and a running hub.

Each check gives findings in words: `fail` needs a hand before anyone relies on the hub, `warn` is worth knowing, `ok`
says what was looked at, so that silence is never mistaken for health. Whatever is not `ok` says what to do. Nothing is
changed, but for a file that the disk is measured with and that is removed again.

    data.py      the directory: owner, rights, file system, every checksum; the clock beside the newest record
    cell.py      the log on Kafka: its journal, its snapshot, and every checksum in the store
    machine.py   disk room and speed, the clock, limits of the process
    software.py  Python packages, Java
    network.py   ports, users and certificates
    online.py    a hub that runs: its version, health, warnings, clock and listeners
"""

from headrace.doctor.examination import examine
from headrace.doctor.finding import Finding, Level, worst

__all__ = ["Finding", "Level", "examine", "worst"]
