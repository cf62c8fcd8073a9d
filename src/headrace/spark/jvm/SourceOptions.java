package headrace.spark;

import java.io.Serializable;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** What a reader was asked for, parsed once. Immutable, so safe for all threads. Null stands for "not given". */
record SourceOptions(
    Hub hub,
    List<String> streams,
    Set<Integer> partitions,
    Point start,
    Point end,
    long recordsPerBatchMax,
    long recordsPerBatchMin,
    String cursor,
    boolean moveCursor,
    List<String> types,
    boolean failOnDataLoss,
    boolean memoryMap,
    long splitRecordsMin,
    int tasksMax,
    boolean pushdown)
    implements Serializable {
  static final StructType ALL_COLUMNS = new StructType()
      .add("index", DataTypes.LongType, false).add("time", DataTypes.TimestampType, false)
      .add("event_time", DataTypes.TimestampType).add("id", DataTypes.LongType).add("type", DataTypes.StringType)
      .add("key", DataTypes.BinaryType).add("payload", DataTypes.BinaryType, false)
      .add("stream", DataTypes.StringType, false).add("partition", DataTypes.IntegerType, false);
  private static final long SPLIT_RECORDS_DEFAULT = 100_000;

  static SourceOptions of(Map<String, String> options) {
    List<String> streams = Options.words(Options.stream(options));
    if (streams.isEmpty()) {
      throw new BadOption("stream", options.get("stream"),
          "a stream, several separated by commas, or a pattern (orders.*)");
    }
    String named = options.get("cursor");
    String cursor = named == null || named.isEmpty() ? null : named;
    Point start = Point.of("start", options.getOrDefault("start", "earliest"));
    if (start.kind() == Point.Kind.CURSOR && cursor == null) {
      throw new BadOption("start", "cursor", "the option 'cursor' to name one");
    }
    Point end = Point.of("end", options.getOrDefault("end", "latest"));
    if (end.kind() == Point.Kind.CURSOR || end.kind() == Point.Kind.POSITIONS) {
      throw new BadOption("end", options.get("end"), "latest, an index, or a time such as 2026-11-15T08:00:00Z");
    }
    String types = options.get("types");
    return new SourceOptions(Options.hub(options), streams, partitions(options.get("partitions")), start, end,
        Options.count(options, "maxRecordsPerBatch", -1), Options.count(options, "minRecordsPerBatch", -1), cursor,
        Options.flag(options, "moveCursor"), types == null ? null : Options.words(types),
        Options.flag(options, "failOnDataLoss"), Options.flag(options, "memoryMap"),
        (long) Options.number(options, "splitRecords", SPLIT_RECORDS_DEFAULT),
        (int) Options.number(options, "tasks", 0), Options.flag(options, "pushdown"));
  }

  private static Set<Integer> partitions(String text) {
    if (text == null || text.isEmpty()) {
      return null;
    }
    Set<Integer> partitions = new TreeSet<>();
    for (String word : Options.words(text)) {
      partitions.add((int) Options.index("partitions", word));
    }
    return partitions;
  }

  /** Whether a partition is among those asked for. */
  boolean reads(int partition) {
    return partitions == null || partitions.contains(partition);
  }

  /** The columns that the option `columns` asks for; all of them without it. */
  static StructType columns(Map<String, String> options) {
    String text = options.get("columns");
    if (text == null) {
      return ALL_COLUMNS;
    }
    List<String> names = Options.words(text);
    if (names.isEmpty() || new HashSet<>(names).size() != names.size()) {
      throw new BadOption("columns", text, "at least one column, each once");
    }
    StructType chosen = new StructType();
    for (String name : names) {
      if (!List.of(ALL_COLUMNS.fieldNames()).contains(name)) {
        throw new BadOption("columns", name, "some of " + String.join(", ", ALL_COLUMNS.fieldNames()));
      }
      chosen = chosen.add(ALL_COLUMNS.apply(name));
    }
    return chosen;
  }

  /** Refuse a schema of the user's own that says something else than what the columns are. */
  static void check(StructType schema) {
    for (StructField field : schema.fields()) {
      boolean isKnown = List.of(ALL_COLUMNS.fieldNames()).contains(field.name())
          && ALL_COLUMNS.apply(field.name()).dataType().equals(field.dataType());
      if (!isKnown) {
        throw new BadOption("schema", field.toDDL(), "no schema: it is " + ALL_COLUMNS.toDDL());
      }
    }
  }
}
