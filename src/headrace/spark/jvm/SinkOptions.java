package headrace.spark;

import java.io.Serializable;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.types.StructType;

/**
 * What a writer was asked for. Immutable, so safe for all threads; it travels to executors. `delivery` is one of
 * `staged`, `once` and `direct`, or null: then the plan decides.
 */
record SinkOptions(Hub hub, String stream, String streamColumn, int partitions, String query, String checkpoint,
    String delivery, StructType schema) implements Serializable {
  static SinkOptions of(LogicalWriteInfo info, Map<String, String> options) {
    String stream = Options.stream(options);
    String named = options.get("streamColumn");
    String streamColumn = named == null || named.isEmpty() ? null : named;
    if (stream == null == (streamColumn == null)) {
      throw new BadOption("stream", stream,
          "the stream to append to, or else the option 'streamColumn' naming a column");
    }
    String delivery = options.get("delivery");
    if (delivery != null && !List.of("staged", "once", "direct").contains(delivery)) {
      throw new BadOption("delivery", delivery, "one of staged, once, direct");
    }
    String query = options.get("query");
    SinkOptions made = new SinkOptions(Options.hub(options), stream, streamColumn,
        (int) Options.count(options, "partitions", 1), query == null || query.isEmpty() ? info.queryId() : query,
        options.get("checkpointLocation"), delivery, info.schema());
    made.record();  // refuses what cannot be records before any task runs
    return made;
  }

  Record record() {
    return new Record(schema, streamColumn);
  }
}
