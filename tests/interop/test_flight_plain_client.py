"""A real hub process, and a program in another process that has pyarrow and nothing of Headrace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hub_process import HubProcess
from support.until import DEADLINE_S

import headrace

SOURCE = str(Path(headrace.__file__).parent.parent)

PROGRAM = """
import json, sys
import pyarrow as pa, pyarrow.flight as flight
assert "headrace" not in sys.modules
client = flight.connect("grpc://" + sys.argv[1])

def call(verb, **params):
    (result,) = client.do_action(flight.Action(verb, json.dumps(params).encode()))
    return json.loads(result.body.to_pybytes())

call("stream.create", stream="orders", partitions=2)
table = pa.table({"payload": [f"order {n}" for n in range(10_000)], "type": ["paid", "sent"] * 5_000})
writer, acks = client.do_put(flight.FlightDescriptor.for_path("orders"), table.schema)
writer.write_table(table, max_chunksize=1_000)
writer.close()

info = client.get_flight_info(flight.FlightDescriptor.for_path("orders"))
assert info.total_records == 10_000, info.total_records
frames = [client.do_get(endpoint.ticket).read_pandas() for endpoint in info.endpoints]
assert [len(frame) for frame in frames] == [10_000, 0]
assert list(frames[0]["index"]) == list(range(10_000))
assert frames[0]["payload"][7] == b"order 7"

ticket = {"stream": "orders", "types": ["paid"], "columns": ["payload"]}
paid = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
assert paid.read_all().num_rows == 5_000
print(json.dumps({"streams": [each.descriptor.path[0].decode() for each in client.list_flights()]}))
"""


@pytest.mark.slow
def test_a_program_without_headrace_uses_the_endpoint(tmp_path):
    with HubProcess(tmp_path, only=("flight",)) as hub:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, hub.addresses["flight"]],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr.decode()
        assert json.loads(ran.stdout) == {"streams": ["orders"]}
        # The data is as durable as it said: a new process finds it after kill -9.
        hub.kill()
        assert _records_after_restart(tmp_path) == 10_000


def _records_after_restart(tmp_path: Path) -> int:
    program = (
        "import asyncio, sys\n"
        "from headrace.hub import Hub\n"
        "async def main():\n"
        "    hub = await Hub.open(sys.argv[1])\n"
        "    print(hub.bounds('orders').next)\n"
        "    await hub.close()\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        timeout=60,
        check=True,
    )
    return int(ran.stdout)
