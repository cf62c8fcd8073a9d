package headrace.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import java.util.Set;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A record batch in place: in the bytes of a Flight message, or in mapped memory. Immutable, but its columns are for
 * one thread.
 *
 * <p>Invariant: every buffer lies inside the body, and offsets of columns of bytes never go back or beyond their bytes:
 * checked here for messages, and by checksum for files. So no row can point at memory of something else.
 */
final class Frame {
  /** All stored columns, in their order on disk. */
  static final List<String> COLUMNS = List.of("index", "time", "event_time", "id", "type", "key", "payload");
  private static final StructField TYPE = SourceOptions.ALL_COLUMNS.apply("type");
  private static final Set<String> OF_BYTES = Set.of("type", "key", "payload");
  final int rows;
  final long bytes;
  private final Object base;
  private final long body;
  private final Object keptAlive;
  private final RecordBatch batch;
  private final List<String> names;
  private final long indexes;

  Frame(Object base, long body, long bytes, Object keptAlive, RecordBatch batch, List<String> names) {
    this.base = base;
    this.body = body;
    this.bytes = bytes;
    this.keptAlive = keptAlive;
    this.batch = batch;
    this.names = names;
    this.rows = (int) batch.length();
    this.indexes = body + batch.buffers(firstBuffer(names.indexOf("index")) + 1).offset();
  }

  /** The batch of a Flight message with these columns, the index among them; null when it holds none. */
  static Frame of(byte[] message, List<String> names) throws IOException {
    Proto.Place header = Proto.find(message, Proto.DATA_HEADER);
    if (header == null || header.length() == 0) {
      return null;
    }
    Proto.Place body = Proto.find(message, Proto.DATA_BODY);
    int at = body == null ? 0 : body.offset();
    int size = body == null ? 0 : body.length();
    try {
      ByteBuffer bytes = ByteBuffer.wrap(message, header.offset(), header.length()).slice();
      Message root = Message.getRootAsMessage(bytes.order(ByteOrder.LITTLE_ENDIAN));
      if (root.headerType() != MessageHeader.RecordBatch) {
        return null;
      }
      RecordBatch batch = (RecordBatch) root.header(new RecordBatch());
      check(batch, names, message, at, size);
      return new Frame(message, Platform.BYTE_ARRAY_OFFSET + at, size, message, batch, names);
    } catch (IndexOutOfBoundsException | NegativeArraySizeException malformed) {
      throw new IOException("the hub sent a record batch that is malformed", malformed);
    }
  }

  static boolean isOfBytes(String column) {
    return OF_BYTES.contains(column);
  }

  /** How many buffers stand before those of a column. */
  private int firstBuffer(int column) {
    int buffer = 0;
    for (int before = 0; before < column; before++) {
      buffer += isOfBytes(names.get(before)) ? 3 : 2;
    }
    return buffer;
  }

  private static void check(RecordBatch batch, List<String> names, byte[] message, int body, int size)
      throws IOException {
    long rows = batch.length();
    if (rows < 0 || rows > size || batch.nodesLength() != names.size() || batch.compression() != null) {
      throw new IOException("the hub sent a record batch that does not have the columns asked for");
    }
    int buffer = 0;
    for (int column = 0; column < names.size(); column++) {
      boolean hasNulls = batch.nodes(column).nullCount() > 0;
      place(batch, buffer++, hasNulls ? (rows + 7) / 8 : 0, size);
      if (!isOfBytes(names.get(column))) {
        place(batch, buffer++, 8 * rows, size);
        continue;
      }
      int offsets = body + place(batch, buffer++, rows == 0 ? 0 : 4 * (rows + 1), size);
      place(batch, buffer, 0, size);
      long end = batch.buffers(buffer++).length();
      ByteBuffer values = ByteBuffer.wrap(message).order(ByteOrder.LITTLE_ENDIAN);
      int last = 0;
      for (int row = 0; rows > 0 && row <= rows; row++) {
        int next = values.getInt(offsets + 4 * row);
        if (next < last || next > end) {
          throw new IOException("the hub sent a record batch whose offsets go back or beyond their bytes");
        }
        last = next;
      }
    }
  }

  /** Where a buffer of at least `needed` bytes begins in a body of `size` bytes. */
  static int place(RecordBatch batch, int number, long needed, long size) throws IOException {
    Buffer buffer = batch.buffers(number);
    if (buffer == null || buffer.offset() < 0 || buffer.length() < needed || buffer.length() > size - buffer.offset()) {
      throw new IOException("a record batch has a buffer that lies outside of it");
    }
    return (int) buffer.offset();
  }

  long index(int row) {
    return Platform.getLong(base, indexes + 8L * row);
  }

  /** When the hub accepted a record, in microseconds; only where `time` is among the columns. */
  long timeUs(int row) {
    return Platform.getLong(base, body + batch.buffers(firstBuffer(names.indexOf("time")) + 1).offset() + 8L * row);
  }

  /** The first row that is not one more than the row before it; `rows` when there is none. */
  int firstGap() {
    long first = index(0);
    for (int row = 1; row < rows; row++) {
      if (index(row) != first + row) {
        return row;
      }
    }
    return rows;
  }

  /** Rows `start` up to, not including, `end` in the columns of `schema`. */
  ColumnarBatch columns(StructType schema, UTF8String stream, int partition, int start, int end) {
    StructField[] fields = schema.fields();
    ColumnVector[] columns = new ColumnVector[fields.length];
    for (int number = 0; number < fields.length; number++) {
      StructField field = fields[number];
      columns[number] = switch (field.name()) {
        case "stream" -> new Column.Same(field.dataType(), stream, 0);
        case "partition" -> new Column.Same(field.dataType(), null, partition);
        default -> column(field, start);
      };
    }
    return new ColumnarBatch(columns, end - start);
  }

  private Column.Stored column(StructField field, int start) {
    int number = names.indexOf(field.name());
    int buffer = firstBuffer(number);
    int nulls = batch.buffers(buffer).length() > 0 ? (int) batch.nodes(number).nullCount() : 0;
    long data = isOfBytes(field.name()) ? body + batch.buffers(buffer + 2).offset() : 0;
    return new Column.Stored(field.dataType(), base, keptAlive, body + batch.buffers(buffer).offset(),
        body + batch.buffers(buffer + 1).offset(), data, nulls, start);
  }

  /** Which rows have one of these types. */
  boolean[] isOfTypes(Set<UTF8String> types) {
    Column.Stored column = column(TYPE, 0);
    boolean[] isOne = new boolean[rows];
    for (int row = 0; row < rows; row++) {
      isOne[row] = !column.isNullAt(row) && types.contains(column.getUTF8String(row));
    }
    return isOne;
  }
}
