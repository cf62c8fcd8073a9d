package headrace.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReadMinRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * An unbounded read, in micro-batches or in real-time mode. For the thread of one query.
 *
 * <p>In real-time mode a batch has a start and no planned end: each task follows its partition, and the end is where
 * they all were when the batch was over. A partition or stream that comes into being is read from the next batch on.
 */
final class StreamScan
    implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode, ReportsSourceMetrics {
  private static final long SEEN_NS = 1_000_000_000L;
  private static final int LAGS_MAX = 100;
  private static final int LATE_LOOKS_MAX = 10;
  private static final long LOOK_MS = 500;
  private final SourceOptions options;
  private final Planner planner;
  private final Wanted wanted;
  private Position initial;
  private List<Hub.Stream> frozen;
  private List<Hub.Stream> seen;
  private long seenNs;
  private Position planned;
  private Position liveStart;
  private final List<LiveReader.Start> live = new ArrayList<>();

  StreamScan(SourceOptions options, Wanted wanted) {
    this.options = options;
    this.planner = new Planner(options);
    this.wanted = wanted;
  }

  @FunctionalInterface
  private interface Asking<T> {
    T get() throws IOException;
  }

  private static <T> T ask(Asking<T> asking) {
    try {
      return asking.get();
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
  }

  @Override
  public Offset initialOffset() {
    if (initial == null) {  // Spark asks twice and expects the same answer; "latest" would differ
      initial = ask(() -> {
        Map<String, Position.OfStream> at = new LinkedHashMap<>();
        for (Hub.Stream stream : planner.streams()) {
          long[] start = planner.indexes(options.start(), stream);
          at.put(stream.name(), new Position.OfStream(stream.id(), start, start.clone()));
        }
        return Position.of(at, options);
      });
    }
    return initial;
  }

  @Override
  public Offset deserializeOffset(String json) {
    return ask(() -> Position.parse(json));
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    if (options.recordsPerBatchMax() > 0) {
      return ReadLimit.maxRows(options.recordsPerBatchMax());
    }
    if (options.recordsPerBatchMin() > 0) {
      return ReadLimit.minRows(options.recordsPerBatchMin(), Long.MAX_VALUE);
    }
    return ReadLimit.allAvailable();
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks with a start and a limit");
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    return ask(() -> {
      seen = frozen == null ? planner.streams() : frozen;
      seenNs = System.nanoTime();
      long recordsMax = limit instanceof ReadMaxRows max ? max.maxRows() : -1;
      Position from = Position.parse(start.json());
      Position end = advanced(from, recordsMax);
      boolean waits = limit instanceof ReadMinRows && frozen == null;
      if (waits && end.since(from).stream().mapToLong(Range::count).sum() < ((ReadMinRows) limit).minRows()) {
        return from;
      }
      planned = end;
      return end;
    });
  }

  /** Where the next batch from here ends, by what was seen. */
  private Position advanced(Position start, long recordsMax) throws IOException {
    Losses losses = new Losses();
    Position from = start.back(losses.vanished(missing(start)));
    Position end = Position.of(Position.advanced(from, seen, recordsMax, losses), options);
    losses.complain(options.failOnDataLoss());
    return end;
  }

  /** What was read and the hub does not have. A hub that only answered late will have it in a moment. */
  private List<Range> missing(Position start) throws IOException {
    List<Range> missing = start.beyond(seen, options);
    for (int look = 0; !missing.isEmpty() && look < LATE_LOOKS_MAX; look++) {
      Hub.sleep(LOOK_MS);
      seen = planner.streams();
      frozen = frozen == null ? null : seen;
      missing = start.beyond(seen, options);
    }
    return missing;
  }

  @Override
  public Offset reportLatestOffset() {
    Map<String, Position.OfStream> at = new LinkedHashMap<>();
    for (Hub.Stream stream : lastSeen()) {
      at.put(stream.name(), new Position.OfStream(stream.id(), stream.next(), stream.next()));
    }
    return Position.of(at, options);
  }

  /** What `latestOffset` saw a moment ago: new enough to show a lag, and a call less. */
  private List<Hub.Stream> lastSeen() {
    boolean isNew = seen != null && System.nanoTime() - seenNs < SEEN_NS;
    return frozen != null ? frozen : isNew ? seen : ask(planner::streams);
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    frozen = ask(planner::streams);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return ask(() -> {
      List<Range> ranges = Position.parse(end.json()).since(Position.parse(start.json()));
      Losses losses = new Losses();
      // For the batch that was planned a moment ago. What is trimmed from now on, the tasks will miss and name.
      boolean isSeen = planned != null && seen != null && planned.json().equals(end.json());
      List<Range> kept = losses.clip(ranges, isSeen ? seen : options.hub().describe(options.streams()));
      losses.complain(options.failOnDataLoss());
      return planner.pieces(kept);
    });
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Scanning.Readers(wanted);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    return ask(() -> {
      seen = planner.streams();
      if (seen.isEmpty()) {
        System.err.println("headrace: there is no stream " + String.join(", ", options.streams())
            + " yet; the query waits for one");
      }
      while (seen.isEmpty()) {  // a batch of nothing would be one that nobody could add to
        Hub.sleep(LOOK_MS);
        seen = planner.streams();
      }
      // Nothing is read yet: this only adds the streams and partitions that came into being.
      liveStart = advanced(Position.parse(start.json()), 0);
      live.clear();
      for (Hub.Stream stream : seen) {  // and not those that are gone, or not asked for any more
        long[] next = liveStart.streams().get(stream.name()).next();
        for (int partition = 0; partition < stream.partitions(); partition++) {
          if (options.reads(partition)) {
            live.add(new LiveReader.Start(stream.name(), partition, next[partition]));
          }
        }
      }
      return live.toArray(new InputPartition[0]);
    });
  }

  /** Where the real-time batch that was planned last begins. */
  List<Ranges> starts() {
    String hub = options.hub().access().address();
    Map<String, Long[]> starts = new LinkedHashMap<>();
    for (LiveReader.Start start : live) {
      starts.computeIfAbsent(start.stream(), name -> new Long[liveStart.streams().get(name).next().length])
          [start.partition()] = start.index();
    }
    return starts.entrySet().stream()
        .map(each -> new Ranges(hub, options.cursor(), each.getKey(), new Long[0], each.getValue())).toList();
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    Map<String, Position.OfStream> at = new LinkedHashMap<>();
    liveStart.streams().forEach((name, start) ->
        at.put(name, new Position.OfStream(start.id(), start.begin(), start.next().clone())));
    for (PartitionOffset offset : offsets) {
      LiveReader.Start reached = (LiveReader.Start) offset;
      at.get(reached.stream()).next()[reached.partition()] = reached.index();
    }
    return Position.of(at, options);
  }

  @Override
  public void commit(Offset end) {
    // Late by one batch and never called for the last one: the session's listener is what moves cursors promptly.
    if (options.moveCursor() && options.cursor() != null) {
      ask(() -> {
        ObjectNode request = Hub.request().put("cursor", options.cursor());
        ObjectNode positions = request.putObject("positions");
        Position.parse(end.json()).streams().forEach((name, at) -> {
          ArrayNode next = positions.putArray(name);
          for (int partition = 0; partition < at.next().length; partition++) {
            next.add(options.reads(partition) ? Long.valueOf(at.next()[partition]) : null);
          }
        });
        return options.hub().call("spark.move-cursor", request);
      });
    }
  }

  /** How many records the hub has that are not read yet: in all, and of each partition where they are not too many. */
  @Override
  public Map<String, String> metrics(Optional<Offset> latestConsumed) {
    if (latestConsumed.isEmpty()) {
      return Map.of();
    }
    return ask(() -> {
      long all = 0;
      Map<String, String> lags = new LinkedHashMap<>();
      Position at = Position.parse(latestConsumed.get().json());
      for (Hub.Stream stream : lastSeen()) {
        Position.OfStream known = at.streams().get(stream.name());
        for (int partition = 0; partition < stream.partitions(); partition++) {
          boolean isKnown = known != null && partition < known.next().length;
          long from = isKnown ? known.next()[partition] : stream.first()[partition];
          long behind = Math.max(0, stream.next()[partition] - from);
          all += behind;
          if (lags.size() < LAGS_MAX) {
            lags.put("recordsBehind " + stream.name() + "/" + partition, Long.toString(behind));
          }
        }
      }
      lags.put("recordsBehind", Long.toString(all));
      return lags;
    });
  }

  @Override
  public void stop() {}
}
