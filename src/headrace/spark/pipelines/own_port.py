"""What runs a project inside Spark's `spark-pipelines`: Spark's own program, on a port of its own.

The program starts a server of Spark Connect in its process and asks it at port 15002, whoever listens there: of two
projects that run at once the second one fails, or runs in the first one's server. Here the server takes any port that
is free, unless the settings name one, and its own client asks it there.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

PORT = "spark.connect.grpc.binding.port"
ANY_PORT = "0"
SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"


def given_settings() -> dict[str, str]:
    """All that Spark's first process was told, as it hands it on."""
    count = int(os.environ.get("PYSPARK_REMOTE_INIT_CONF_LEN", "0"))
    groups = (json.loads(os.environ[f"PYSPARK_REMOTE_INIT_CONF_{number}"]) for number in range(count))
    return {name: value for group in groups for name, value in group.items()}


def take_own_port() -> None:
    """Have the server that starts in this process take a free port, and its client go there."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.core import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    start, default_port = ConnectSession._start_connect_server, DefaultChannelBuilder.default_port

    def start_server(master: str, options: dict[str, Any]) -> None:
        # Not among the options themselves: the client offers those to the server once more, which refuses a port.
        start(master, {**options, PORT: given_settings().get(PORT, ANY_PORT)})

    def port() -> int:
        served = SparkSession._instantiatedSession
        if served is None:  # a server elsewhere
            return int(default_port())
        service = getattr(getattr(served._jvm, SERVICE), "MODULE$")
        return int(service.localPort())

    ConnectSession._start_connect_server = staticmethod(start_server)
    DefaultChannelBuilder.default_port = staticmethod(port)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file: its modules are not for a project to import
    take_own_port()
    # The server has it from its settings; Spark's client offers it once more, and warns that it is static.
    warnings.filterwarnings("ignore", "Failed to set spark.sql.extensions")
    from pyspark.pipelines import cli

    cli.main()
