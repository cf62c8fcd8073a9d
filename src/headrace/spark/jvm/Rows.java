package headrace.spark;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows on their way to the hub: they become one Arrow record batch with the columns of a put, in the order in which
 * Spark has always sent them: payload, id, event_time, type, key. For one thread.
 */
final class Rows {
  static final byte[] SCHEMA = Ipc.schema(Field.nullable("payload", new ArrowType.Binary()),
      Field.nullable("id", new ArrowType.Int(64, true)),
      Field.nullable("event_time", new ArrowType.Timestamp(TimeUnit.MICROSECOND, "UTC")),
      Field.nullable("type", new ArrowType.Utf8()), Field.nullable("key", new ArrowType.Binary()));
  private static final int ROW_BYTES = 32;  // offsets, bits and numbers of a row, about
  private final Record record;
  private final Bytes payloads = new Bytes();
  private final Numbers ids = new Numbers();
  private final Numbers eventTimes = new Numbers();
  private final Bytes types = new Bytes();
  private final Bytes keys = new Bytes();
  private int count;

  Rows(Record record) {
    this.record = record;
  }

  void add(InternalRow row, byte[] key) {
    payloads.add(record.payload(row));
    ids.add(record.hasId(row), record.hasId(row) ? record.id(row) : 0);
    eventTimes.add(record.hasEventTime(row), record.hasEventTime(row) ? record.eventTimeUs(row) : 0);
    types.add(record.type(row));
    keys.add(key);
    count++;
  }

  int count() {
    return count;
  }

  /** About how much they are to send. */
  long bytes() {
    return (long) ROW_BYTES * count + payloads.data.size() + types.data.size() + keys.data.size();
  }

  /** As a message of a put, with `metadata` beside it unless it is null. */
  byte[] message(byte[] metadata) {
    List<byte[]> buffers = buffers();
    return Ipc.message(Ipc.batch(count, nulls(), buffers, List.of()), metadata, Ipc.body(buffers));
  }

  /** As a part of an Arrow IPC stream that says where it goes. */
  void write(ByteArrayOutputStream out, String stream, int partition) {
    List<byte[]> buffers = buffers();
    List<String> to = List.of("stream", stream, "partition", Integer.toString(partition));
    Ipc.encapsulate(out, Ipc.batch(count, nulls(), buffers, to));
    out.writeBytes(Ipc.body(buffers));
  }

  private List<Values> columns() {
    return List.of(payloads, ids, eventTimes, types, keys);
  }

  private int[] nulls() {
    return columns().stream().mapToInt(column -> column.nulls).toArray();
  }

  private List<byte[]> buffers() {
    return columns().stream().flatMap(column -> column.buffers().stream()).toList();
  }

  /** The values of one column: which are there, and what Arrow keeps of them. */
  private abstract static class Values {
    int nulls;
    private int count;
    private byte[] present = new byte[64];

    void mark(boolean isThere) {
      if (count >> 3 == present.length) {
        present = Arrays.copyOf(present, 2 * present.length);
      }
      if (isThere) {
        present[count >> 3] |= (byte) (1 << (count & 7));
      } else {
        nulls++;
      }
      count++;
    }

    byte[] validity() {
      return nulls == 0 ? new byte[0] : Arrays.copyOf(present, (count + 7) / 8);
    }

    abstract List<byte[]> buffers();
  }

  private static final class Numbers extends Values {
    private ByteBuffer values = ByteBuffer.allocate(512).order(ByteOrder.LITTLE_ENDIAN);

    void add(boolean isThere, long value) {
      mark(isThere);
      if (!values.hasRemaining()) {
        values = ByteBuffer.allocate(2 * values.capacity()).order(ByteOrder.LITTLE_ENDIAN).put(values.flip());
      }
      values.putLong(value);
    }

    @Override
    List<byte[]> buffers() {
      return List.of(validity(), Arrays.copyOf(values.array(), values.position()));
    }
  }

  private static final class Bytes extends Values {
    final ByteArrayOutputStream data = new ByteArrayOutputStream();
    private ByteBuffer ends = ByteBuffer.allocate(512).order(ByteOrder.LITTLE_ENDIAN).putInt(0);

    void add(byte[] value) {
      mark(value != null);
      if (value != null) {
        data.writeBytes(value);
      }
      if (!ends.hasRemaining()) {
        ends = ByteBuffer.allocate(2 * ends.capacity()).order(ByteOrder.LITTLE_ENDIAN).put(ends.flip());
      }
      ends.putInt(data.size());
    }

    @Override
    List<byte[]> buffers() {
      return List.of(validity(), Arrays.copyOf(ends.array(), ends.position()), data.toByteArray());
    }
  }
}
