"""Every setting of Headrace: one struct per section of the TOML file.

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
    """The base of all sections: immutable, and an unknown key is an error."""


class Log(Section, frozen=True):
    """The durable log."""

    data: Annotated[str, Meta(description="Directory that holds the log")] = "headrace-data"
    commit_bytes_max: Annotated[Bytes, Meta(description="About the most that is written before one fdatasync")] = (
        8 * MIB
    )
    queue_bytes_max: Annotated[
        Bytes, Meta(description="Appends waiting for the disk; above it producers are held back")
    ] = 64 * MIB
    journal_file_bytes: Annotated[Bytes, Meta(description="A new journal file is begun after this much")] = 64 * MIB
    journal_bytes_max: Annotated[
        Bytes, Meta(description="Above it the oldest tails are sealed, however small, so that journal files can go")
    ] = 256 * MIB
    journal_spares_max: Annotated[
        Count, Meta(description="Finished journal files kept to be written over, which is quicker than new ones")
    ] = 4
    segment_bytes: Annotated[Bytes, Meta(description="A tail of this size is sealed; smaller segments are merged")] = (
        32 * MIB
    )
    tail_bytes_max: Annotated[
        Bytes, Meta(description="Memory for all tails together; above half of it the largest are sealed")
    ] = 256 * MIB
    seal_apart_bytes: Annotated[
        Bytes, Meta(description="A segment of this size is made by a process of its own; 0 for never")
    ] = 8 * MIB
    seal_age_s: Annotated[Seconds, Meta(description="A stream's tail is sealed once its oldest record is this old")] = (
        600
    )
    merge_segments_min: Annotated[Count, Meta(description="So many small neighbouring segments become one")] = 8
    compact_bytes_min: Annotated[Bytes, Meta(description="Tables smaller than this are not compacted")] = 4 * MIB
    open_segments_max: Annotated[Count, Meta(description="Segments kept memory mapped")] = 256
    disk_reserve_bytes: Annotated[
        Bytes, Meta(description="Appends are refused when the disk has less room than this")
    ] = 64 * MIB
    maintenance_interval_s: Annotated[
        Seconds, Meta(description="How often retention, age and compaction are looked at")
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


class Limits(Section, frozen=True):
    """Limits of the whole process. Limits of one protocol stand in its own section."""

    sessions_max: Annotated[Count, Meta(description="Open sessions over all listeners")] = 10_000
    sessions_kept: Annotated[Count, Meta(description="Ended sessions that `headrace session ls` still shows")] = 200
    stop_s: Annotated[Seconds, Meta(description="How long a clean stop may take before sessions are cut")] = 10
    event_loop: Annotated[
        Literal["asyncio", "uvloop"], Meta(description="`uvloop` (extra `speed`) does a fifth more round trips")
    ] = "asyncio"


class Listen(Section, frozen=True):
    """Where each listener listens: `host:port`, port 0 for any free port, or `off`."""

    flight: Annotated[Address, Meta(description="Arrow Flight: SDK, CLI, Spark, pandas, DuckDB")] = "127.0.0.1:7070"
    http: Annotated[Address, Meta(description="HTTP: admin API, metrics, health, console, FutoIn")] = "127.0.0.1:8080"
    wallaroo: Annotated[Address, Meta(description="Wallaroo source connector protocol")] = "127.0.0.1:7100"
    ockam: Annotated[Address, Meta(description="Ockam stream protocol")] = "127.0.0.1:4000"
    ignite: Annotated[Address, Meta(description="Perper: Ignite thin client protocol")] = "127.0.0.1:10800"
    fabric: Annotated[Address, Meta(description="Perper: fabric service (gRPC)")] = "127.0.0.1:40400"


class Http(Section, frozen=True):
    """The one HTTP server."""

    request_bytes_max: Annotated[Bytes, Meta(description="The largest request body of the admin API")] = 64 * MIB
    keep_alive_s: Annotated[Seconds, Meta(description="An idle connection is closed after this")] = 30
    connections_max: Annotated[Count, Meta(description="Open HTTP connections")] = 2_000
    hosts: Annotated[list[str], Meta(description="Names besides localhost that a loopback listener answers to")] = []
    console: Annotated[bool, Meta(description="Serve the web console")] = True


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
    anonymous: Annotated[
        str, Meta(description="Role of callers without a name: `auto` is admin while there are no users, then nobody")
    ] = "auto"


class TlsFiles(Section, frozen=True):
    """Certificate files in PEM form."""

    certificate: Annotated[str, Meta(description="Certificate chain")] = ""
    key: Annotated[str, Meta(description="Private key")] = ""
    client_ca: Annotated[str, Meta(description="Clients must show a certificate signed by one of these")] = ""


class Tls(Section, frozen=True):
    """TLS for all listeners, or for one: `[tls.listeners.flight]`."""

    certificate: Annotated[str, Meta(description="Certificate chain of every listener; empty for plain text")] = ""
    key: Annotated[str, Meta(description="Private key")] = ""
    client_ca: Annotated[str, Meta(description="Clients must show a certificate signed by one of these")] = ""
    listeners: Annotated[
        dict[str, TlsFiles], Meta(description="Other files for one listener, by its name in [listen]")
    ] = {}


class LoggingSection(Section, frozen=True):
    """What the process says while it runs."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="The least important to show")] = (
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
        Meta(ge=0, le=1, description="Share of traces kept that begin here; those that came with a caller follow it"),
    ] = 1.0
    service_name: Annotated[str, Meta(description="Name of this hub in the traces")] = "headrace"


class Flight(Section, frozen=True):
    """Arrow Flight. How many reads and follows may be open stands in `log.readers_max`."""

    writers_max: Annotated[Count, Meta(description="Open puts; each has two threads")] = 1_000


class Wallaroo(Section, frozen=True):
    """Wallaroo source connector protocol."""

    cookie: Annotated[str, Meta(description="What a connector must say in HELLO; empty means it must say nothing")] = ""
    stream_name: Annotated[
        str, Meta(description="Name of a connector's stream, from {program}, {instance} and {stream}")
    ] = "{instance}.{stream}"
    window_credits: Annotated[Count, Meta(description="Frames a connector may have under way")] = 1_000
    frame_bytes_max: Annotated[Bytes, Meta(description="The largest frame")] = 4 * MIB
    connections_max: Annotated[Count, Meta(description="Open connections; one more is answered with ERROR")] = 1_000
    streams_max: Annotated[Count, Meta(description="Streams that one connection may introduce")] = 10_000
    in_flight_bytes_max: Annotated[
        Bytes, Meta(description="Bytes of one connection on their way to the disk; above it nothing more is read")
    ] = 8 * MIB
    handshake_s: Annotated[Seconds, Meta(description="A connection without a HELLO is closed after this")] = 10
    open_wait_s: Annotated[
        Seconds, Meta(description="How long NOTIFY waits for a stream that an earlier connection still holds")
    ] = 1
    event_time_unit: Annotated[
        Literal["ns", "us", "ms", "s"], Meta(description="Unit of event times; the protocol names none")
    ] = "us"
    draft_message_ids: Annotated[
        Literal["any", "increasing"],
        Meta(description="Draft dialect: `increasing` drops ids that are not above the last, as v3 always does"),
    ] = "any"
    draft_trust_notify: Annotated[
        bool, Meta(description="Draft dialect: take a NOTIFY's point of reference even if it is not the stored one")
    ] = False
    ok_form: Annotated[Literal["v3", "any"], Meta(description="`any` sends an OK that v2 clients read too")] = "v3"
    restart_address: Annotated[
        str, Meta(description="Address that RESTART names to v3 connectors; empty for this one")
    ] = ""


class Ockam(Section, frozen=True):
    """Ockam stream protocol. `listen.ockam` is the listener of the original framing."""

    cbor_listen: Annotated[
        Address, Meta(description="A second listener, for the newer framing of July 2024: `host:port`, or `off`")
    ] = "off"
    stream_services: Annotated[list[str], Meta(description="Addresses under which the stream service answers")] = (
        msgspec.field(default_factory=lambda: ["stream_service", "stream"])
    )
    index_services: Annotated[list[str], Meta(description="Addresses under which the index service answers")] = (
        msgspec.field(default_factory=lambda: ["stream_index_service", "stream_index"])
    )
    unknown_index: Annotated[
        Literal["zero", "none"],
        Meta(
            description="Get of an index never saved: `zero` records and answers 0 (specification), `none` as reference"
        ),
    ] = "zero"
    clamp_saved_index: Annotated[
        bool, Meta(description="Keep saved indexes within the stream, so that nobody can make a client skip the future")
    ] = True
    name_bytes_max: Annotated[Count, Meta(description="The longest stream name and client id")] = 500
    partitions_max: Annotated[Count, Meta(description="Partitions one create may ask for")] = 1_024
    addresses_max: Annotated[Count, Meta(description="Stream addresses (one per partition) handed out at all")] = (
        100_000
    )
    pull_records_max: Annotated[Count, Meta(description="Records in one pull reply, whatever limit was asked")] = 10_000
    pull_bytes_max: Annotated[Bytes, Meta(description="Bytes of records in one pull reply, if one record fits")] = MIB
    waiting_requests_max: Annotated[
        Count, Meta(description="Pulls and index requests of one connection under way; above it we stop reading")
    ] = 1_024
    unconfirmed_pushes_max: Annotated[
        Count, Meta(description="Pushes of one connection not yet confirmed; above it we stop reading")
    ] = 100_000
    greeting_timeout_s: Annotated[
        Seconds, Meta(description="Newer framing: how long to wait for the peer's version byte")
    ] = 5


class Futoin(Section, frozen=True):
    """FutoIn FTN18 event streams, under the HTTP listener."""

    enabled: Annotated[bool, Meta(description="Serve FutoIn under `path`")] = True
    path: Annotated[str, Meta(description="Where FutoIn is mounted on the HTTP port")] = "/futoin"
    insecure: Annotated[
        bool, Meta(description="Let programs on this machine call without TLS and without a name; for development")
    ] = False
    create_streams: Annotated[
        bool, Meta(description="Create a stream when someone who may write to it first names it")
    ] = True
    discard: Annotated[
        bool, Meta(description="Streams created here drop events that every registered consumer has read")
    ] = False
    mac_keys: Annotated[dict[str, str], Meta(description="Keys of users that sign their messages, in base64")] = {}
    message_bytes_max: Annotated[Bytes, Meta(description="The largest message (FTN3: 64 KiB)")] = 64 * KIB
    group_events_max: Annotated[
        int, Meta(ge=1, le=1000, description="Events in one answer to a poll and in one pushed group")
    ] = 1_000
    calls_max: Annotated[Count, Meta(description="Calls of one connection that may be under way")] = 1_024
    push_window: Annotated[Count, Meta(description="Groups on their way to one reliable consumer")] = 2
    push_timeout_s: Annotated[Seconds, Meta(description="A group not answered in this time is sent again")] = 30
    live_window: Annotated[Count, Meta(description="Groups on their way to one LIVE consumer")] = 2
    live_backlog_events: Annotated[
        int, Meta(ge=1000, description="A LIVE consumer further behind than this loses the oldest groups")
    ] = 10_000


class Perper(Section, frozen=True):
    """Perper fabric: Ignite thin protocol and gRPC."""

    frame_bytes_max: Annotated[Bytes, Meta(description="The largest message")] = 64 * MIB
    nesting_max: Annotated[Count, Meta(description="How deep arrays, collections and maps may be nested")] = 64
    caches_max: Annotated[Count, Meta(description="How many caches may exist")] = 100_000
    types_max: Annotated[Count, Meta(description="How many binary types may be registered")] = 100_000
    cursors_max: Annotated[Count, Meta(description="Open scans of one connection")] = 128
    requests_max: Annotated[Count, Meta(description="Unanswered requests of one Ignite connection before it waits")] = (
        10_000
    )
    calls_max: Annotated[Count, Meta(description="Open gRPC calls of one connection")] = 10_000
    login_s: Annotated[Seconds, Meta(description="An Ignite client must have shaken hands within this")] = 30
    recent_bytes_max: Annotated[Bytes, Meta(description="Stream items kept in memory for live listeners")] = 32 * MIB
    cleanup_s: Annotated[
        Seconds, Meta(description="How soon items that no listener needs are removed from an ephemeral stream")
    ] = 0.1
    missing_stream: Annotated[
        Literal["fail", "wait"], Meta(description="StreamItems on a stream that is not there: fail, or wait for it")
    ] = "fail"


class ImmortalSection(Section, frozen=True):
    """One immortal: `[ambrosia.immortals.NAME]`."""

    receive: Annotated[Address, Meta(description="Port on which the hub receives from the binding")] = "127.0.0.1:0"
    send: Annotated[Address, Meta(description="Port on which the hub sends to the binding")] = "127.0.0.1:0"
    sockets: Annotated[
        Literal["listen", "connect"],
        Meta(description="`listen` on both ports, or `connect` out to the send port (C binding, before mid-2020)"),
    ] = "listen"
    delivery: Annotated[
        Literal["bare", "batch", "counted"],
        Meta(description="Records hold `bare` RPCs, a `batch` (type 5), or also `counted` batches (type 13)"),
    ] = "bare"
    standby: Annotated[
        bool, Meta(description="A second binding follows and takes over (type 15) instead of being refused")
    ] = False
    checkpoint_log_bytes: Annotated[Bytes, Meta(description="Ask for a checkpoint after this much log")] = 128 * MIB
    checkpoints_kept: Annotated[
        int, Meta(ge=0, description="Checkpoints kept, and the log since the oldest of them; 0 keeps all")
    ] = 2
    inbox_method: Annotated[
        Int32, Meta(description="Method of impulses made of inbox records whose type is not a number")
    ] = 0
    upgrade_version: Annotated[
        int | None, Meta(description="Version to run; above the current one the next recovery is an upgrade")
    ] = None
    committer: Annotated[Int32 | None, Meta(description="Committer id of a new immortal; chosen if not given")] = None


class Ambrosia(Section, frozen=True):
    """AMBROSIA immortals."""

    enabled: Annotated[bool, Meta(description="Serve immortals")] = True
    trust_local: Annotated[
        bool, Meta(description="Let bindings on this machine in although there are users: the protocol has no login")
    ] = True
    host: Annotated[str, Meta(description="Where the ports of debugging sessions are bound")] = "127.0.0.1"
    message_bytes_max: Annotated[
        Bytes, Meta(description="The largest message of a binding; not above log.record_bytes_max")
    ] = 16 * MIB
    initial_bytes_max: Annotated[Bytes, Meta(description="The largest InitialMessage")] = 8 * MIB - 64
    name_bytes_max: Annotated[Count, Meta(description="The longest name of a destination")] = 128
    checkpoint_bytes_max: Annotated[Bytes, Meta(description="The largest checkpoint")] = 64 * GIB
    destinations_max: Annotated[Count, Meta(description="Names that may be called without being registered")] = 1_000
    backlog_bytes_max: Annotated[
        Bytes, Meta(description="Calls kept for one absent immortal; above it their senders are held back")
    ] = GIB
    immortals: Annotated[dict[str, ImmortalSection], Meta(description="Immortals by name")] = {}


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
    """A pipeline that the hub starts with itself: a Python file or a SQL text."""

    name: Annotated[str, Meta(description="Its name, by which `headrace pipeline` knows it", min_length=1)]
    file: Annotated[str, Meta(description="Python file of the pipeline")] = ""
    sql: Annotated[str, Meta(description="Or its SQL text, over `stream('name')`")] = ""
    into: Annotated[str, Meta(description="Stream that the results of a SQL text go to")] = ""
    trigger: Annotated[str, Meta(description="How often a batch begins, such as `1 second`; empty for the default")] = (
        ""
    )
    start: Annotated[str, Meta(description="Where a pipeline without a cursor begins")] = "earliest"
    output_mode: Annotated[Literal["append", "update", "complete"], Meta(description="Spark's output mode")] = "append"
    enabled: Annotated[bool, Meta(description="Start it with the hub")] = True

    def __post_init__(self) -> None:
        if bool(self.sql) == bool(self.file):
            raise ValueError(f"pipeline {self.name!r} needs either `sql` or `file`")
        if self.sql and not self.into:
            raise ValueError(f"pipeline {self.name!r} needs `into`, the stream for the results of its SQL")


class Config(Section, frozen=True):
    """All sections."""

    log: Log = Log()
    limits: Limits = Limits()
    listen: Listen = Listen()
    http: Http = Http()
    security: SecuritySection = SecuritySection()
    tls: Tls = Tls()
    logging: LoggingSection = LoggingSection()
    tracing: Tracing = Tracing()
    flight: Flight = Flight()
    wallaroo: Wallaroo = Wallaroo()
    ockam: Ockam = Ockam()
    futoin: Futoin = Futoin()
    perper: Perper = Perper()
    ambrosia: Ambrosia = Ambrosia()
    spark: Spark = Spark()
    pipeline: Annotated[list[PipelineEntry], Meta(description="Pipelines that start with the hub")] = []

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.pipeline]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two pipelines are named {', '.join(twice)}")
