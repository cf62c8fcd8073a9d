package headrace.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32C;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * A task of a micro-batch or batch write: its rows are staged at the hub, as one Arrow IPC stream in chunks, and count
 * when the driver commits. For the thread of one task.
 *
 * <p>With several partitions, rows with a key go to the partition that the key's hash says, so that one key stays in
 * one order; rows without a key go to partition 0.
 */
final class Stager implements DataWriter<InternalRow> {
  private static final int CHUNK_BYTES = 4 << 20;
  private final SinkOptions options;
  private final Record record;
  private final Part where;
  private final Map<Place, Rows> waiting = new LinkedHashMap<>();
  private final Map<String, Integer> partitions = new HashMap<>();
  private final ByteArrayOutputStream chunk = new ByteArrayOutputStream();
  private final CRC32C crc = new CRC32C();
  private long waitingBytes;
  private long sentBytes;
  private long rows;

  /** Where a row goes. */
  private record Place(String stream, int partition) {}

  /** What one task left at the hub. */
  record Part(String query, String run, long batch, int part, long attempt, long size, long crc, long rows)
      implements WriterCommitMessage {}

  Stager(SinkOptions options, Part where) {
    this.options = options;
    this.record = options.record();
    this.where = where;
  }

  @Override
  public void write(InternalRow row) throws IOException {
    String stream = options.stream() == null ? record.stream(row) : options.stream();
    byte[] key = record.key(row);
    int partition = key == null ? 0 : partition(stream, key);
    Rows to = waiting.computeIfAbsent(new Place(stream, partition), place -> new Rows(record));
    long before = to.bytes();
    to.add(row, key);
    rows++;
    waitingBytes += to.bytes() - before;
    if (waitingBytes >= CHUNK_BYTES) {
      flush();
    }
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

  private void flush() throws IOException {
    if (sentBytes == 0 && chunk.size() == 0) {
      Rows.writeSchema(chunk);
    }
    for (Map.Entry<Place, Rows> entry : waiting.entrySet()) {
      entry.getValue().write(chunk, entry.getKey().stream, entry.getKey().partition);
    }
    waiting.clear();
    waitingBytes = 0;
    send();
  }

  private void send() throws IOException {
    byte[] bytes = chunk.toByteArray();
    chunk.reset();
    for (int at = 0; at < bytes.length; at += CHUNK_BYTES) {
      byte[] part = Arrays.copyOfRange(bytes, at, Math.min(bytes.length, at + CHUNK_BYTES));
      ObjectNode request = Hub.request().put("query", where.query).put("run", where.run).put("batch", where.batch)
          .put("part", where.part).put("attempt", where.attempt).put("offset", sentBytes).put("rows", part);
      options.hub().call("spark.stage", request);
      crc.update(part);
      sentBytes += part.length;
    }
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    if (rows > 0) {
      if (!waiting.isEmpty()) {
        flush();
      }
      Rows.writeEnd(chunk);
      send();
    }
    return new Part(where.query, where.run, where.batch, where.part, where.attempt, sentBytes, crc.getValue(), rows);
  }

  /** Nothing to do: what was staged and is not named by a commit never counts, and the hub removes it. */
  @Override
  public void abort() {}

  @Override
  public void close() {}
}
