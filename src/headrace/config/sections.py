"""Every setting of Headrace: one struct per section of the TOML file. A protocol's stands in its `settings`.

A field's comment for people is its `description`: the reference page and `headrace config show` print it, so there is
one place to change. Loading (file, environment, flags) is in `load`.

Sizes are integers in bytes and may be written `"32MiB"`; durations are seconds and may be written `"30s"`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.units import GIB, KIB, MIB

# The unit in `extra` tells the loader which spellings to accept and the reference which unit to print.
Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
Seconds = Annotated[float, Meta(ge=0, extra={"unit": "seconds"})]
Count = Annotated[int, Meta(ge=1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Address = Annotated[str, Meta(extra={"unit": "address"})]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all sections: immutable, and an unknown key is an error. `REMOVED` of a section says of keys that it
    had once why they are gone."""


class Kafka(Section, frozen=True):
    """The log on Apache Kafka, for `log.backend = "kafka"`. `headrace cluster init` makes the topics."""

    servers: Annotated[str, Meta(description="Brokers to connect to first: `kafka-1:9092,kafka-2:9092`")] = ""
    prefix: Annotated[
        str, Meta(description="Topics are named `PREFIX.journal` and so on", pattern=r"^[A-Za-z0-9._-]{1,200}$")
    ] = "headrace"
    cells: Annotated[Count, Meta(description="Partitions of the journal. There can be only one so far")] = 1
    replication: Annotated[
        Count, Meta(description="Brokers that keep each message; all but one of them must have it")
    ] = 3
    store: Annotated[
        str,
        Meta(
            description="Where segments, snapshots and checkpoints are kept: `kafka` is a topic, `file:///shared` or "
            "`s3://bucket/folder` a place that all hubs reach; `local` is the data directory, and the journal is kept"
        ),
    ] = "kafka"
    cache_bytes: Annotated[
        Bytes, Meta(description="About how much of the store the data directory keeps; the rest is fetched")
    ] = 64 * GIB
    timeout_s: Annotated[Seconds, Meta(description="A commit without an answer after this has failed")] = 120
    lease_s: Annotated[Seconds, Meta(description="How long a hub that lost its cell may answer reads at most")] = 10
    strict_reads: Annotated[
        bool, Meta(description="A new owner waits `lease_s`, so that no two hubs ever answer for a cell")
    ] = False
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        Meta(description="Compression of what the hub sends to Kafka, by the hub; small commits are not compressed"),
    ] = "zstd"
    commits_max: Annotated[
        Count, Meta(description="Commits under way at once; 1 waits for each before the next is sent")
    ] = 5
    client: Annotated[
        dict[str, str],
        Meta(description="More properties of librdkafka: TLS and SASL, such as `sasl.password`; not printed"),
    ] = {}

    def __post_init__(self) -> None:
        if self.cells != 1:
            raise ValueError(
                f"`log.kafka.cells` is {self.cells}, and this version of Headrace keeps a log in one cell: streams are "
                "not spread over several partitions of the journal, nor over several hubs; leave it at 1"
            )


class Log(Section, frozen=True):
    """The durable log."""

    backend: Annotated[
        Literal["embedded", "kafka"], Meta(description="Where the journal is: files in `data`, or topics of Kafka")
    ] = "embedded"
    data: Annotated[str, Meta(description="Directory that holds the log; on Kafka it may be empty at each start")] = (
        "headrace-data"
    )
    backup_root: Annotated[
        str, Meta(description="Directory for backups by `hub.backup`; relative to the data directory")
    ] = "../headrace-backups"
    commit_bytes_max: Annotated[Bytes, Meta(description="Roughly the most that one fdatasync covers")] = 8 * MIB
    queue_bytes_max: Annotated[
        Bytes, Meta(description="Appends waiting for the disk; beyond this, producers are held back")
    ] = 64 * MIB
    journal_file_bytes: Annotated[Bytes, Meta(description="A new journal file is started after this much")] = 64 * MIB
    journal_bytes_max: Annotated[
        Bytes, Meta(description="Beyond this, the oldest tails are sealed, however small, to free journal files")
    ] = 256 * MIB
    journal_spares_max: Annotated[
        Count, Meta(description="Finished journal files kept for reuse, which is quicker than new ones")
    ] = 4
    segment_bytes: Annotated[Bytes, Meta(description="A tail of this size is sealed; smaller segments are merged")] = (
        32 * MIB
    )
    tail_bytes_max: Annotated[
        Bytes, Meta(description="Memory for all tails together; above half of it the largest are sealed")
    ] = 256 * MIB
    seal_apart_bytes: Annotated[
        Bytes, Meta(description="Segments of this size or more are made by a separate process; 0: never")
    ] = 8 * MIB
    seal_age_s: Annotated[Seconds, Meta(description="A stream's tail is sealed once its oldest record is this old")] = (
        600
    )
    merge_segments_min: Annotated[Count, Meta(description="This many small neighbouring segments become one")] = 8
    compact_bytes_min: Annotated[Bytes, Meta(description="Tables smaller than this are not compacted")] = 4 * MIB
    open_segments_max: Annotated[Count, Meta(description="Segments kept memory mapped")] = 256
    disk_reserve_bytes: Annotated[
        Bytes, Meta(description="Appends are refused when the disk has less room than this")
    ] = 64 * MIB
    maintenance_interval_s: Annotated[
        Seconds, Meta(description="How often retention, age and compaction are checked")
    ] = 5
    record_bytes_max: Annotated[Bytes, Meta(description="The largest payload of one record")] = 16 * MIB
    batch_bytes_max: Annotated[Bytes, Meta(description="The largest batch of one append")] = 64 * MIB
    streams_max: Annotated[Count, Meta(description="How many streams and tables may exist")] = 100_000
    partitions_max: Annotated[Count, Meta(description="How many partitions one stream may have")] = 1024
    producers_max: Annotated[Count, Meta(description="Producer names remembered per stream partition")] = 100_000
    cursors_max: Annotated[Count, Meta(description="Cursors of one stream")] = 100_000
    table_bytes_max: Annotated[Bytes, Meta(description="Live keys and values of one table, in memory")] = GIB
    name_bytes_max: Annotated[Bytes, Meta(description="The longest name of a stream, table or cursor")] = 512
    readers_max: Annotated[Count, Meta(description="How many reads and follows may be open at once")] = 10_000
    kafka: Kafka = Kafka()


class Cluster(Section, frozen=True):
    """Several hubs in front of one log on Kafka: one owns it, the others follow and pass clients on."""

    hub: Annotated[str, Meta(description="Name of this hub for people; the machine's name unless given")] = ""
    standbys: Annotated[
        int,
        Meta(
            ge=0,
            description="This many hubs follow: they read the journal as it grows, and can take over at once. Others "
            "stay cold, and so do all with 0: they read it only when they are needed. The same for all hubs",
        ),
    ] = 1
    forward: Annotated[
        Literal["proxy", "redirect"],
        Meta(
            description="Clients at a hub that is not the owner: `proxy` passes them on; `redirect` tells those whose "
            "protocol has a word for it where the owner is, and passes on the others"
        ),
    ] = "proxy"
    advertise: Annotated[
        dict[str, str],
        Meta(
            description="Listener, or `cluster` for `cluster.listen`, → `host:port` as other hubs reach it; where it "
            "listens unless given"
        ),
    ] = {}
    listen: Annotated[
        str,
        Meta(
            description="`host:port` where the other hubs tell whose connections they pass on, or `off`: then those "
            "count as the hub's own. The host of the listeners and a free port unless given"
        ),
    ] = ""
    session_timeout_s: Annotated[
        Seconds, Meta(description="An owner that is silent for this long is replaced; brokers allow 6 s to 30 min")
    ] = 10
    wait_s: Annotated[
        Seconds, Meta(description="How long a connection to a hub that is not the owner waits for one")
    ] = 60


class Limits(Section, frozen=True):
    """Limits of the whole process. Limits of one protocol stand in its own section."""

    sessions_max: Annotated[Count, Meta(description="Open sessions over all listeners")] = 10_000
    sessions_kept: Annotated[Count, Meta(description="Ended sessions that `headrace session ls` still shows")] = 200
    unread_bytes_max: Annotated[
        Bytes, Meta(description="Bytes of incomplete messages, over all listeners; beyond this, the largest is dropped")
    ] = 256 * MIB
    message_s: Annotated[
        Seconds, Meta(description="A message must be complete within this, plus a second for each 64 KiB")
    ] = 30
    sign_in_s: Annotated[
        Seconds, Meta(description="A connection must have signed in, or sent a complete message, within this")
    ] = 60
    strangers_max: Annotated[
        Count, Meta(description="Connections that have not signed in, over all listeners; one more ends the oldest")
    ] = 1_000
    files_reserved: Annotated[
        Count, Meta(description="File descriptors that are kept for the log: connections take only the others")
    ] = 512
    list_items: Annotated[Count, Meta(description="Entries of a list that a verb sends unless asked otherwise")] = 1_000
    list_items_max: Annotated[Count, Meta(description="The most entries of a list that may be asked for at once")] = (
        10_000
    )
    json_values_max: Annotated[
        Count,
        Meta(
            description="Values in the JSON of one request of a verb, nested ones included (empty lists and objects "
            "count twice). Each may take a hundred bytes of memory, however few it has in the request"
        ),
    ] = 400_000
    stop_s: Annotated[Seconds, Meta(description="How long a clean stop may take before sessions are cut")] = 10
    event_loop: Annotated[
        Literal["asyncio", "uvloop"], Meta(description="`uvloop` (extra `speed`) does a fifth more round trips")
    ] = "asyncio"


class Sql(Section, frozen=True):
    """SQL over streams and tables. Each query runs in a process of its own, which knows only what the hub sends it."""

    time_s: Annotated[Seconds, Meta(description="A query that takes longer is ended")] = 60
    memory_bytes: Annotated[Bytes, Meta(description="What one query may use")] = 512 * MIB
    threads: Annotated[Count, Meta(description="Threads of one query")] = 2
    rows_max: Annotated[Count, Meta(description="Rows of one result")] = 10_000_000
    result_bytes_max: Annotated[Bytes, Meta(description="Bytes of one result, as it is sent")] = GIB
    answer_bytes_max: Annotated[
        Bytes, Meta(description="Bytes of the rows that `sql.query` sends as JSON; what is more is left out")
    ] = 16 * MIB
    text_bytes_max: Annotated[Bytes, Meta(description="The longest statement")] = MIB
    value_fields_max: Annotated[
        int, Meta(ge=1, le=2_000, description="Fields of `value`, nested ones included; the others stay in the payload")
    ] = 500
    value_depth_max: Annotated[
        int, Meta(ge=1, le=64, description="Levels of `value`; records with more do not count towards its types")
    ] = 16
    queries_max: Annotated[Count, Meta(description="Queries running at once")] = 8
    user_queries_max: Annotated[Count, Meta(description="Queries of one user running at once")] = 4
    idle_s: Annotated[Seconds, Meta(description="An idle query process is ended after this")] = 600


class Http(Section, frozen=True):
    """The one HTTP server."""

    request_bytes_max: Annotated[Bytes, Meta(description="The largest request body of the admin API")] = 24 * MIB
    headers_max: Annotated[Count, Meta(description="The most headers of a request")] = 100
    header_bytes_max: Annotated[Bytes, Meta(description="The longest head of a request: its line and its headers")] = (
        64 * KIB
    )
    keep_alive_s: Annotated[Seconds, Meta(description="An idle connection is closed after this")] = 30
    connections_max: Annotated[Count, Meta(description="Open HTTP connections")] = 2_000
    hosts: Annotated[list[str], Meta(description="Names besides localhost that a loopback listener answers to")] = []
    console: Annotated[bool, Meta(description="Serve the web console")] = True
    console_pages_max: Annotated[Count, Meta(description="Open pages of the console")] = 64
    console_mutes_max: Annotated[Count, Meta(description="Muted alarms")] = 1_000
    history: Annotated[bool, Meta(description="Keep a day of rates, lags and events for the console")] = True
    history_bytes_max: Annotated[Bytes, Meta(description="What that day may take on disk; the oldest goes first")] = (
        32 * MIB
    )


class User(Section, frozen=True):
    """One user. `headrace user add` writes these."""

    secret: Annotated[
        str | None, Meta(description="Password: plain, or `scrypt$…` as `headrace user hash` prints it")
    ] = None
    tokens: Annotated[list[str], Meta(description="Tokens: plain, or `sha256$…`")] = []
    roles: Annotated[list[str], Meta(description="Names of roles")] = []


class Grant(Section, frozen=True):
    """Rights on streams, through verbs. A role is a list of these; nothing is granted that is not listed."""

    rights: Annotated[list[Literal["read", "write", "admin"]], Meta(description="What may be done")]
    streams: Annotated[list[str], Meta(description="Patterns of stream names, such as `orders.*`")] = msgspec.field(
        default_factory=lambda: ["*"]
    )
    verbs: Annotated[list[str], Meta(description="Patterns of admin verbs, such as `cursor.*`")] = msgspec.field(
        default_factory=lambda: ["*"]
    )


class SecuritySection(Section, frozen=True):
    """Users, tokens and roles. Without any user everyone who can reach a listener may do everything."""

    users: Annotated[dict[str, User], Meta(description="Users by name")] = {}
    roles: Annotated[
        dict[str, list[Grant]], Meta(description="Roles by name; `admin`, `writer` and `reader` are built in")
    ] = {}
    users_file: Annotated[str, Meta(description="File `headrace user add` writes; relative to the data directory")] = (
        "users.json"
    )
    login_failures_max: Annotated[
        Count,
        Meta(description="Wrong passwords of a user from an address before it must wait; of all users, ten times that"),
    ] = 10
    login_window_s: Annotated[Seconds, Meta(description="How long it must wait, and how long failures count")] = 60
    farewell_s: Annotated[
        Seconds,
        Meta(description="A peer whose sign-in no longer holds is cut off after this if it does not ask or send"),
    ] = 10
    anonymous: Annotated[
        str, Meta(description="Role of callers without a name: `auto` is admin while there are no users, then nobody")
    ] = "auto"


class TlsFiles(Section, frozen=True):
    """Certificate files in PEM form."""

    certificate: Annotated[str, Meta(description="Certificate chain")] = ""
    key: Annotated[str, Meta(description="Private key")] = ""
    client_ca: Annotated[str, Meta(description="Clients must show a certificate signed by one of these")] = ""


class Tls(Section, frozen=True):
    """TLS for all listeners, or for one: `[tls.listeners.NAME]`."""

    certificate: Annotated[str, Meta(description="Certificate chain of every listener; empty for plain text")] = ""
    key: Annotated[str, Meta(description="Private key")] = ""
    client_ca: Annotated[str, Meta(description="Clients must show a certificate signed by one of these")] = ""
    listeners: Annotated[
        dict[str, TlsFiles], Meta(description="Other files for one listener, by its name in [listen]")
    ] = {}


class LoggingSection(Section, frozen=True):
    """What the process says while it runs."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="The lowest level to show")] = (
        "info"
    )
    format: Annotated[
        Literal["auto", "text", "json"], Meta(description="`auto` is text on a terminal and JSON elsewhere")
    ] = "auto"


class Tracing(Section, frozen=True):
    """OpenTelemetry traces (extra `otel`). Off, and nothing of it loaded, without an endpoint."""

    endpoint: Annotated[
        str, Meta(description="OTLP/HTTP address of a collector, such as `http://127.0.0.1:4318`; empty for no traces")
    ] = ""
    ratio: Annotated[
        float,
        Meta(
            ge=0, le=1, description="Share of the traces that start here to keep; a caller's traces follow the caller"
        ),
    ] = 1.0
    service_name: Annotated[str, Meta(description="Name of this hub in the traces")] = "headrace"


class Spark(Section, frozen=True):
    """Spark sessions that Headrace starts, and what Spark may leave at the hub."""

    master: Annotated[str, Meta(description="Spark master")] = "local[*]"
    conf: Annotated[dict[str, str], Meta(description="Spark settings, as `spark.sql.shuffle.partitions`")] = {}
    token: Annotated[str, Meta(description="Token of the pipelines in this file; needed when the hub has users")] = ""
    ca: Annotated[
        str,
        Meta(description="Who signed this hub's certificate; unless given, `HEADRACE_CA` or the certificate itself"),
    ] = ""
    home: Annotated[str, Meta(description="Where their checkpoints live; empty for the user's state directory")] = ""
    parts_max: Annotated[Count, Meta(description="Tasks whose rows one batch of a sink may consist of")] = 10_000
    batch_bytes_max: Annotated[Bytes, Meta(description="Staged rows of one batch of a sink")] = 16 * GIB


class PipelineEntry(Section, frozen=True):
    """A pipeline that the hub starts with itself: a Python file, a SQL text or a project."""

    name: Annotated[str, Meta(description="Its name, by which `headrace pipeline` knows it", min_length=1)]
    file: Annotated[str, Meta(description="Python file of the pipeline")] = ""
    sql: Annotated[str, Meta(description="Or its SQL text, over `stream('name')`")] = ""
    project: Annotated[str, Meta(description="Or the folder of a project of Spark Declarative Pipelines")] = ""
    into: Annotated[str, Meta(description="Stream that the results of a SQL text go to")] = ""
    trigger: Annotated[
        str, Meta(description="How often a batch begins, such as `1 second`, or `real time`; empty for the default")
    ] = ""
    start: Annotated[str, Meta(description="Where a pipeline without a cursor begins")] = "earliest"
    output_mode: Annotated[Literal["append", "update", "complete"], Meta(description="Spark's output mode")] = "append"
    enabled: Annotated[bool, Meta(description="Start it with the hub")] = True

    def __post_init__(self) -> None:
        if sum(map(bool, (self.sql, self.file, self.project))) != 1:
            raise ValueError(f"pipeline {self.name!r} needs one of `sql`, `file` and `project`")
        if self.sql and not self.into:
            raise ValueError(f"pipeline {self.name!r} needs `into`, the stream for the results of its SQL")
