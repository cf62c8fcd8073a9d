package headrace.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.zip.CRC32C;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * A task of a micro-batch or batch write: its rows are staged at the hub, as one Arrow IPC stream in chunks, and count
 * when the driver commits. For the thread of one task.
 */
final class Stager implements DataWriter<InternalRow> {
  private static final int CHUNK_BYTES = 4 << 20;
  private final SinkOptions options;
  private final Record record;
  private final Part where;
  private final Spread.Places places;
  private final ByteArrayOutputStream chunk = new ByteArrayOutputStream();
  private final CRC32C crc = new CRC32C();
  private Spread waiting;
  private long sentBytes;
  private long rows;

  /** What one task left at the hub. */
  record Part(String query, String run, long batch, int part, long attempt, long size, long crc, long rows)
      implements WriterCommitMessage {}

  Stager(SinkOptions options, Part where) {
    this.options = options;
    this.record = options.record();
    this.where = where;
    this.places = new Spread.Places(options, record);
    this.waiting = new Spread(record);
  }

  @Override
  public void write(InternalRow row) throws IOException {
    waiting.add(places.of(row), row);
    rows++;
    if (waiting.bytes() >= CHUNK_BYTES) {
      flush();
      send();
    }
  }

  private void flush() {
    if (sentBytes == 0 && chunk.size() == 0) {
      Spread.writeSchema(chunk);
    }
    waiting.write(chunk);
    waiting = new Spread(record);
  }

  private void send() throws IOException {
    byte[] bytes = chunk.toByteArray();
    chunk.reset();
    for (int at = 0; at < bytes.length; at += CHUNK_BYTES) {
      byte[] part = Arrays.copyOfRange(bytes, at, Math.min(bytes.length, at + CHUNK_BYTES));
      ObjectNode request = Hub.request().put("query", where.query).put("run", where.run).put("batch", where.batch)
          .put("part", where.part).put("attempt", where.attempt).put("offset", sentBytes);
      options.hub().call("spark.stage", request, part);
      crc.update(part);
      sentBytes += part.length;
    }
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    if (rows > 0) {
      flush();
      Spread.writeEnd(chunk);
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
