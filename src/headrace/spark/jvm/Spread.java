package headrace.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows on their way to several places: an Arrow IPC stream whose batches say where they go. For one thread at a time.
 *
 * <p>With several partitions, rows with a key go to the partition that the key's hash says, so that one key stays in
 * one order; rows without a key go to partition 0.
 */
final class Spread {
  private static final byte[] END = {-1, -1, -1, -1, 0, 0, 0, 0};
  private final Record record;
  private final Map<Place, Rows> rows = new LinkedHashMap<>();
  private int count;
  private long bytes;

  /** Where a row goes. */
  record Place(String stream, int partition) {}

  /** Finds the places of rows, and asks the hub once for each stream. For the thread of one task. */
  static final class Places {
    private final SinkOptions options;
    private final Record record;
    private final Map<String, Integer> partitions = new HashMap<>();

    Places(SinkOptions options, Record record) {
      this.options = options;
      this.record = record;
    }

    Place of(InternalRow row) throws IOException {
      String stream = options.stream() == null ? record.stream(row) : options.stream();
      byte[] key = record.key(row);
      return new Place(stream, key == null ? 0 : partition(stream, key));
    }

    private int partition(String stream, byte[] key) throws IOException {
      Integer count = partitions.get(stream);
      if (count == null) {
        List<Hub.Stream> found = options.hub().describe(List.of(stream));
        count = found.isEmpty() ? options.partitions() : found.get(0).partitions();
        partitions.put(stream, count);
      }
      return count == 1 ? 0 : (int) Long.remainderUnsigned(Xxh3.hash(key), count);
    }
  }

  Spread(Record record) {
    this.record = record;
  }

  void add(Place place, InternalRow row) {
    Rows to = rows.computeIfAbsent(place, unknown -> new Rows(record));
    long before = to.bytes();
    to.add(row, record.key(row));
    bytes += to.bytes() - before;
    count++;
  }

  int count() {
    return count;
  }

  /** About how much they are to send. */
  long bytes() {
    return bytes;
  }

  /** The rows of the only place that there is. */
  Rows only() {
    return rows.values().iterator().next();
  }

  /** Their batches, as part of a stream. */
  void write(ByteArrayOutputStream out) {
    rows.forEach((place, some) -> some.write(out, place.stream, place.partition));
  }

  /** A stream of nothing else. */
  byte[] stream() {
    ByteArrayOutputStream out = new ByteArrayOutputStream((int) Math.min(bytes + 4096, Integer.MAX_VALUE - 16));
    writeSchema(out);
    write(out);
    writeEnd(out);
    return out.toByteArray();
  }

  static void writeSchema(ByteArrayOutputStream out) {
    Ipc.encapsulate(out, Rows.SCHEMA);
  }

  static void writeEnd(ByteArrayOutputStream out) {
    out.writeBytes(END);
  }
}
