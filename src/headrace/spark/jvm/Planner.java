package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.read.InputPartition;

/** What batch and streaming reads share on the driver: how they plan. Immutable, so safe for all threads. */
record Planner(SourceOptions options) {
  private static final int TASKS_PER_CORE = 2;
  // A small range is most likely the live tail: asking for files would cost more than reading it over Flight.
  private static final long MAPPED_RECORDS_MIN = 1_000;

  private Hub hub() {
    return options.hub();
  }

  /** The streams asked for, with partitions that were not asked for shown as empty. */
  List<Hub.Stream> streams() throws IOException {
    List<Hub.Stream> streams = hub().describe(options.streams());
    if (options.partitions() != null) {
      for (Hub.Stream stream : streams) {
        for (int partition = 0; partition < stream.partitions(); partition++) {
          if (!options.reads(partition)) {
            stream.first()[partition] = 0;
            stream.next()[partition] = 0;
          }
        }
      }
    }
    return streams;
  }

  /** A start or an end as one index per partition. */
  long[] indexes(Point point, Hub.Stream stream) throws IOException {
    long[] indexes = new long[stream.partitions()];
    ObjectNode asked = Hub.request().put("cursor", options.cursor()).put("stream", stream.name());
    JsonNode cursor = point.kind() == Point.Kind.CURSOR ? hub().call("spark.position", asked) : null;
    for (int partition = 0; partition < indexes.length; partition++) {
      long first = stream.first()[partition];
      long next = stream.next()[partition];
      indexes[partition] = switch (point.kind()) {
        case EARLIEST -> first;
        case LATEST -> next;
        case INDEX -> next == 0 ? 0 : point.value();
        case TIME -> next == 0 ? 0 : hub().indexAtTime(stream.name(), partition, point.value());
        case POSITIONS -> {
          long given = point.position(stream.name(), partition);
          yield given < 0 || next == 0 ? first : given;
        }
        case CURSOR -> cursor.path(partition).isNumber() ? cursor.get(partition).asLong() : first;
      };
    }
    return indexes;
  }

  /** What a bounded read reads. */
  List<Range> bounded(Pushdown filters) throws IOException {
    List<Hub.Stream> streams = streams();
    Set<String> missing = new TreeSet<>(options.streams());
    missing.removeIf(name -> name.matches(".*[*?\\[].*"));
    missing.removeAll(new HashSet<>(streams.stream().map(Hub.Stream::name).toList()));
    if (!missing.isEmpty()) {
      throw HubError.unknown(missing.iterator().next());
    }
    List<Range> ranges = new ArrayList<>();
    for (Hub.Stream stream : streams) {
      if (filters.wantsStream(stream.name())) {
        ranges.addAll(bounded(stream, filters));
      }
    }
    Losses losses = new Losses();
    List<Range> kept = losses.clip(ranges, streams);
    losses.complain(options.failOnDataLoss());
    return kept;
  }

  private List<Range> bounded(Hub.Stream stream, Pushdown filters) throws IOException {
    long[] starts = indexes(options.start(), stream);
    long[] ends = indexes(options.end(), stream);
    List<Range> ranges = new ArrayList<>();
    for (int partition = 0; partition < stream.partitions(); partition++) {
      long start = Math.max(starts[partition], filters.low);
      long end = Math.min(Math.min(ends[partition], stream.next()[partition]), filters.high);
      if (filters.timeLowUs != Long.MIN_VALUE) {
        start = Math.max(start, hub().indexAtTime(stream.name(), partition, filters.timeLowUs));
      }
      if (filters.timeHighUs != Long.MAX_VALUE) {
        end = Math.min(end, hub().indexAtTime(stream.name(), partition, filters.timeHighUs));
      }
      if (filters.wantsPartition(partition) && end > start) {
        ranges.add(new Range(stream.name(), partition, start, end));
      }
    }
    return ranges;
  }

  /** Ranges cut so that all cores work, each with the files that hold it. */
  InputPartition[] pieces(List<Range> ranges) throws IOException {
    int tasks = options.tasksMax() > 0
        ? options.tasksMax() : TASKS_PER_CORE * Runtime.getRuntime().availableProcessors();
    Map<String, Map<Integer, List<Hub.SegmentFile>>> files = new HashMap<>();
    List<InputPartition> pieces = new ArrayList<>();
    for (Range range : Range.split(ranges, tasks, options.splitRecordsMin())) {
      if (options.memoryMap() && range.count() >= MAPPED_RECORDS_MIN && !files.containsKey(range.stream())) {
        files.put(range.stream(), hub().segments(range.stream()));
      }
      Map<Integer, List<Hub.SegmentFile>> known = files.getOrDefault(range.stream(), Map.of());
      pieces.add(new Piece(range, known.getOrDefault(range.partition(), List.of()).stream()
          .filter(file -> file.first() < range.end() && file.next() > range.start()).collect(Collectors.toList())));
    }
    return pieces.toArray(new InputPartition[0]);
  }
}
