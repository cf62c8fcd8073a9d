"""Every metric of Headrace, declared with its help text: here, or in a protocol's `metrics`. Nothing else creates one.

A hub has one `Metrics`; its registry is what `/metrics` prints. Names end in their unit; counters end in `_total`.
Labels never hold stream names, peers or other things without a bound, except where a collector bounds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from headrace.log.ops import Append
from headrace.protocols.descriptor import protocols

if TYPE_CHECKING:
    from headrace.hub.hooks import Hooks, Read
    from headrace.log.pending import Pending

S = TypeVar("S")
LATENCY_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZE_BUCKETS_BYTES = tuple(float(256 * 4**step) for step in range(10))

# A second series per counter that nothing here reads.
disable_created_metrics()  # type: ignore[no-untyped-call]


def counted(counter: Counter) -> float:
    """The value of a counter without labels."""
    return float(counter._value.get())


class Maker:
    """Creates metrics in one registry, so that the declarations below stay one line each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, help, labels, registry=self.registry)

    def latency(self, name: str, help: str, labels: Sequence[str] = ()) -> Histogram:
        return Histogram(name, help, labels, registry=self.registry, buckets=LATENCY_BUCKETS_S)

    def size(self, name: str, help: str, labels: Sequence[str] = ()) -> Histogram:
        return Histogram(name, help, labels, registry=self.registry, buckets=SIZE_BUCKETS_BYTES)


class LogMetrics:
    """The log."""

    def __init__(self, make: Maker) -> None:
        self.records = make.counter("headrace_log_records_total", "Records made durable")
        self.bytes = make.counter("headrace_log_bytes_total", "Payload bytes made durable")
        self.duplicates = make.counter("headrace_log_duplicates_total", "Appends acknowledged again and not stored")
        self.commits = make.counter("headrace_log_commits_total", "Commits: one write and one fdatasync each")
        self.commit_seconds = make.latency("headrace_log_commit_seconds", "From append to durable, per commit")
        self.commit_bytes = make.size("headrace_log_commit_bytes", "Bytes per commit")
        self.backlog_bytes = make.gauge("headrace_log_backlog_bytes", "Appends waiting for the disk")
        self.tail_bytes = make.gauge("headrace_log_tail_bytes", "Records in memory that are not sealed yet")
        self.sealed = make.gauge("headrace_log_sealed_segments", "Segments sealed since the start")
        self.disk_bytes = make.gauge("headrace_log_disk_bytes", "Bytes on disk", ["kind"])
        self.free_bytes = make.gauge("headrace_log_free_bytes", "Room left on the disk of the data directory")
        self.read_records = make.counter("headrace_log_read_records_total", "Records read")
        self.damaged = make.counter("headrace_log_damaged_records_total", "Records found damaged")
        self.refused = make.counter("headrace_log_refused_total", "Appends refused", ["code"])
        self.failed = make.gauge("headrace_log_failed", "1 once a sync failed and the log accepts nothing more")
        self.recovery_seconds = make.gauge("headrace_log_recovery_seconds", "How long the last start took")
        self.foreign_messages = make.gauge(
            "headrace_log_foreign_messages", "Messages in the journal topic that no hub wrote, passed over"
        )
        self.cache_bytes = make.gauge("headrace_log_cache_bytes", "What the data directory keeps of a shared store")
        self.fetched_bytes = make.gauge(
            "headrace_log_store_fetched_bytes", "Fetched from a shared store since the start"
        )
        self.stored_bytes = make.gauge("headrace_log_store_stored_bytes", "Put into a shared store since the start")
        self.orphans = make.gauge(
            "headrace_log_store_orphans",
            "Blobs in a shared store that hubs before this one left without a name, found since the start and removed",
        )
        self.looks = make.gauge(
            "headrace_log_looks", "Times that the owner read the journal, since a message was not where it should be"
        )

    def committed(self, outcomes: list[Pending]) -> None:
        """Count what one commit settled."""
        records = size = duplicates = written = 0
        now_s = began_s = time.perf_counter()
        for pending in outcomes:
            written += pending.nbytes
            if pending.token is not None and pending.token[2] < began_s:
                began_s = pending.token[2]
            if pending.error is not None:
                if pending.token is not None:
                    self.refused.labels(code=pending.error.code).inc()
                continue
            for position, operation in enumerate(pending.operations):
                if not isinstance(operation, Append):
                    continue
                result = pending.result[position]
                if result.duplicate:
                    duplicates += 1
                else:
                    records += result.count
                    size += operation.batch.nbytes
        if began_s < now_s:  # not only the log's own
            self.commit_seconds.observe(now_s - began_s)
        self.commit_bytes.observe(written)
        self.records.inc(records)
        self.bytes.inc(size)
        self.commits.inc()
        if duplicates:
            self.duplicates.inc(duplicates)

    def read(self, reading: Read) -> None:
        """Count a batch. A scan is counted by whoever asked for it."""
        if reading.verb == "read":
            self.read_records.inc(reading.records)


class ClusterMetrics:
    """Hubs in front of one log on Kafka."""

    def __init__(self, make: Maker) -> None:
        self.owner = make.gauge("headrace_cluster_owner", "1 while this hub owns the cell", ["cell"])
        self.epoch = make.gauge("headrace_cluster_epoch", "Epoch of the last claim that this hub knows", ["cell"])
        self.follows = make.gauge(
            "headrace_cluster_follows", "1 while this hub reads the journal, as owner or follower; 0 while it is cold"
        )
        self.lag_bytes = make.gauge(
            "headrace_log_follow_lag_bytes", "About how much of the journal a follower has yet to read"
        )
        self.takeover_seconds = make.gauge(
            "headrace_cluster_takeover_seconds", "From being chosen to serving, at this hub's last takeover"
        )
        self.topic_problems = make.gauge(
            "headrace_cluster_topic_problems",
            "What is wrong with the topics on Kafka now: settings that may lose data, topics created again",
        )
        self.forwarded = make.counter(
            "headrace_cluster_forwarded_total", "Connections passed on to the owner", ["listener"]
        )
        self.unintroduced = make.counter(
            "headrace_cluster_unintroduced_total",
            "Connections passed on without telling the owner whose they are: they count as this hub's own",
            ["listener"],
        )
        self.forward_failures = make.counter(
            "headrace_cluster_forward_failures_total", "Connections that could not be passed on", ["listener"]
        )


class NounMetrics:
    """How many there are of each noun."""

    def __init__(self, make: Maker) -> None:
        self.streams = make.gauge("headrace_streams", "Streams")
        self.tables = make.gauge("headrace_tables", "Tables")
        self.table_bytes = make.gauge("headrace_table_bytes", "Keys and values of all tables")
        self.cursors = make.gauge("headrace_cursors", "Cursors")
        self.cursor_lag_max = make.gauge(
            "headrace_cursor_lag_records_max", "Records the furthest-behind cursor has to read"
        )
        self.checkpoints = make.gauge("headrace_checkpoints", "Checkpoints kept")
        self.checkpoint_bytes = make.counter("headrace_checkpoint_bytes_total", "Checkpoint bytes written")


class ProtocolMetrics:
    """What every protocol counts, one label value each; a protocol's own extras stand in its own section."""

    def __init__(self, make: Maker) -> None:
        label = ["protocol"]
        self.sessions = make.gauge("headrace_sessions", "Open sessions", label)
        self.opened = make.counter("headrace_sessions_opened_total", "Sessions opened", label)
        self.received_bytes = make.counter("headrace_received_bytes_total", "Bytes received", label)
        self.sent_bytes = make.counter("headrace_sent_bytes_total", "Bytes sent", label)
        self.records_in = make.counter("headrace_records_in_total", "Records received and made durable", label)
        self.records_out = make.counter("headrace_records_out_total", "Records delivered", label)
        self.skipped = make.counter(
            "headrace_records_skipped_total", "Records too big for the protocol, skipped", label
        )
        self.peer_errors = make.counter("headrace_peer_errors_total", "Errors sent to peers", ["protocol", "code"])
        self.refused_logins = make.counter("headrace_refused_logins_total", "Sessions refused: who are you?", label)
        self.ack_seconds = make.latency("headrace_ack_seconds", "From receiving a record to its acknowledgement", label)
        self._counters: dict[str, ProtocolCounters] = {}

    def of(self, protocol: str) -> ProtocolCounters:
        """Those of one protocol."""
        if protocol not in self._counters:
            self._counters[protocol] = ProtocolCounters(self, protocol)
        return self._counters[protocol]


class ProtocolCounters:
    """The metrics of one protocol, their labels looked up once."""

    def __init__(self, metrics: ProtocolMetrics, protocol: str) -> None:
        self.received_bytes = metrics.received_bytes.labels(protocol=protocol)
        self.sent_bytes = metrics.sent_bytes.labels(protocol=protocol)
        self.records_in = metrics.records_in.labels(protocol=protocol)
        self.records_out = metrics.records_out.labels(protocol=protocol)
        self.skipped = metrics.skipped.labels(protocol=protocol)
        metrics.refused_logins.labels(protocol=protocol)  # 0 is shown from the start; `Admission` counts
        self.ack_seconds = metrics.ack_seconds.labels(protocol=protocol)
        self._peer_errors = metrics.peer_errors
        self._protocol = protocol

    def peer_error(self, code: str) -> None:
        """A peer was told no."""
        self._peer_errors.labels(protocol=self._protocol, code=code).inc()


class IntakeMetrics:
    """What has come in and is not understood yet, over all listeners."""

    def __init__(self, make: Maker) -> None:
        self.unread_bytes = make.gauge("headrace_unread_bytes", "Bytes received of messages that are not whole yet")
        self.strangers = make.gauge("headrace_strangers", "Open connections that have not signed in")
        self.ended = make.counter(
            "headrace_connections_ended_total",
            "Connections ended by a limit: silent, slow, strangers, bytes, files",
            ["protocol", "reason"],
        )


class SecurityMetrics:
    """Logins."""

    def __init__(self, make: Maker) -> None:
        self.held_back = make.counter(
            "headrace_logins_held_back_total", "Logins not looked at: too many failures from their address"
        )
        self.ended = make.counter(
            "headrace_signins_ended_total",
            "Open sign-ins that ended because the user, password, token or certificate changed",
        )


class VerbMetrics:
    """Admin verbs, by whichever way they are called."""

    def __init__(self, make: Maker) -> None:
        self.seconds = make.latency("headrace_verb_seconds", "Time of an admin verb", ["verb"])
        self.errors = make.counter("headrace_verb_errors_total", "Admin verbs refused or failed", ["verb", "code"])
        self.parts = make.counter("headrace_list_parts_total", "Lists of which there was more than a page", ["verb"])
        self.too_many = make.counter(
            "headrace_verb_too_many_values_total",
            "Requests refused because their JSON has more values than `limits.json_values_max`",
            ["verb"],
        )


class SqlMetrics:
    """Queries."""

    def __init__(self, make: Maker) -> None:
        self.queries = make.counter("headrace_sql_queries_total", "Queries, by how they ended", ["outcome"])
        self.limits = make.counter("headrace_sql_limits_total", "Queries that met a limit of `[sql]`", ["limit"])
        self.seconds = make.latency("headrace_sql_seconds", "Time of a query")
        self.running = make.gauge("headrace_sql_running", "Queries under way")
        self.processes = make.gauge("headrace_sql_processes", "Processes that run queries, or wait for one")
        self.scanned_bytes = make.counter("headrace_sql_scanned_bytes_total", "Bytes that queries have read")
        self.result_bytes = make.counter("headrace_sql_result_bytes_total", "Bytes of results")


class ConsoleMetrics:
    """The web console. Each has its limit in the settings."""

    def __init__(self, make: Maker) -> None:
        self.pages = make.gauge("headrace_console_pages", "Open pages of the console: at most http.console_pages_max")
        self.mutes = make.gauge("headrace_console_mutes", "Muted alarms: at most http.console_mutes_max")
        self.history_bytes = make.gauge(
            "headrace_console_history_bytes", "What the history of the console takes: about http.history_bytes_max"
        )
        self.refused = make.counter("headrace_console_refused_total", "Pages and mutes refused by a limit", ["limit"])


class SparkMetrics:
    """Pipelines that the hub supervises."""

    def __init__(self, make: Maker) -> None:
        self.pipelines = make.gauge("headrace_pipelines", "Pipelines", ["state"])
        self.batch_seconds = make.latency("headrace_pipeline_batch_seconds", "Time of a pipeline's batch")
        self.batch_records = make.counter("headrace_pipeline_records_total", "Records pipelines have processed")
        self.commits = make.counter("headrace_spark_commits_total", "Batches of Spark sinks", ["outcome"])
        self.staged_bytes = make.counter("headrace_spark_staged_bytes_total", "Bytes that Spark tasks staged")
        source = ["query", "stream", "partition"]
        self.position = make.gauge("headrace_spark_position", "Where the results of a real-time query end", source)
        self.lag = make.gauge("headrace_spark_lag_records", "Records that a real-time query has no results of", source)


class ProcessMetrics:
    """The process itself."""

    def __init__(self, make: Maker) -> None:
        self.info = make.gauge("headrace_info", "Always 1; the label holds the version", ["version"])
        self.started = make.gauge("headrace_start_time_seconds", "When the process started, seconds since 1970")
        self.resident_bytes = make.gauge("headrace_resident_memory_bytes", "Memory of the process")
        self.loop_lag_seconds = make.gauge("headrace_loop_lag_seconds", "How late the event loop last ran a timer")
        self.collector_seconds = make.gauge(
            "headrace_garbage_collector_seconds", "What Python's garbage collector has taken; everybody waits meanwhile"
        )
        self.collector_longest_seconds = make.gauge(
            "headrace_garbage_collector_longest_seconds", "The longest that it took at once since this was last asked"
        )


class Metrics:
    """All sections, those of protocols under their names. Functions that set gauges run before each scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make = Maker(self.registry)
        self.log = LogMetrics(make)
        self.cluster = ClusterMetrics(make)
        self.nouns = NounMetrics(make)
        self.protocol = ProtocolMetrics(make)
        self.security = SecurityMetrics(make)
        self.intake = IntakeMetrics(make)
        self.verbs = VerbMetrics(make)
        self.sql = SqlMetrics(make)
        self.console = ConsoleMetrics(make)
        self.spark = SparkMetrics(make)
        self.process = ProcessMetrics(make)
        self._before_scrape: list[Callable[[], None]] = []
        self.protocol.sessions.labels(protocol="http").set(0)
        for protocol in protocols():
            if protocol.metrics is not None:
                setattr(self, protocol.name, protocol.metrics(make))
            for label in protocol.labels:
                self.protocol.sessions.labels(protocol=label).set(0)

    def section(self, kind: type[S]) -> S:
        """The metrics of a protocol, by their class."""
        return next(section for section in vars(self).values() if isinstance(section, kind))

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """Register a function that sets gauges which are cheaper to read when asked than to keep up to date."""
        self._before_scrape.append(refresh)

    def subscribe(self, hooks: Hooks) -> None:
        """Count what a hub tells."""
        hooks.commit.append(self.log.committed)
        hooks.read.append(self.log.read)
        hooks.verb.append(self.verb_done)

    def session_changed(self, protocol: str, change: int) -> None:
        """What `Sessions` calls when one opens or ends."""
        self.protocol.sessions.labels(protocol=protocol).inc(change)
        if change > 0:
            self.protocol.opened.labels(protocol=protocol).inc(change)

    def verb_done(self, verb: str, seconds: float, code: str) -> None:
        """Time a verb; `code` is empty when all went well."""
        self.verbs.seconds.labels(verb=verb).observe(seconds)
        if code:
            self.verbs.errors.labels(verb=verb, code=code).inc()

    def text(self) -> bytes:
        """The page Prometheus reads."""
        self.refresh()
        return self.page()

    def refresh(self) -> None:
        """Set the gauges that are read when asked."""
        for refresh in self._before_scrape:
            refresh()

    def page(self) -> bytes:
        """The page as it was when the gauges were set. Takes some milliseconds, in any thread."""
        return generate_latest(self.registry)
