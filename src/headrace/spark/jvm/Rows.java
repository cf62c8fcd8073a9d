package headrace.spark;

import com.google.flatbuffers.FlatBufferBuilder;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.KeyValue;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.MetadataVersion;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Rows on their way to the hub: they become one Arrow record batch with the columns of a put, in the order in which
 * Spark has always sent them: payload, id, event_time, type, key. For one thread.
 */
final class Rows {
  static final byte[] SCHEMA = schema();
  private static final int ROW_BYTES = 32;  // offsets, bits and numbers of a row, about
  private static final byte[] END = {-1, -1, -1, -1, 0, 0, 0, 0};
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

  /** As a message of a put, with `metadata` beside it. */
  byte[] message(byte[] metadata) {
    byte[] body = body();
    ByteArrayOutputStream message = new ByteArrayOutputStream(body.length + 512);
    Proto.putBytes(message, Proto.DATA_HEADER, header(body.length, List.of()));
    if (metadata != null) {
      Proto.putBytes(message, Proto.DATA_METADATA, metadata);
    }
    Proto.putBytes(message, Proto.DATA_BODY, body);
    return message.toByteArray();
  }

  /** As a part of an Arrow IPC stream that says where it goes. */
  void write(ByteArrayOutputStream out, String stream, int partition) {
    byte[] body = body();
    List<String> to = List.of("stream", stream, "partition", Integer.toString(partition));
    encapsulate(out, header(body.length, to));
    out.writeBytes(body);
  }

  static void writeSchema(ByteArrayOutputStream out) {
    encapsulate(out, SCHEMA);
  }

  static void writeEnd(ByteArrayOutputStream out) {
    out.writeBytes(END);
  }

  private static void encapsulate(ByteArrayOutputStream out, byte[] metadata) {
    int size = padded(metadata.length);
    out.writeBytes(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putInt(-1).putInt(size).array());
    out.writeBytes(Arrays.copyOf(metadata, size));
  }

  private List<Values> columns() {
    return List.of(payloads, ids, eventTimes, types, keys);
  }

  private byte[] body() {
    ByteArrayOutputStream body = new ByteArrayOutputStream((int) Math.min(bytes() + 1024, Integer.MAX_VALUE - 16));
    for (Values column : columns()) {
      column.buffers().forEach(buffer -> body.writeBytes(Arrays.copyOf(buffer, padded(buffer.length))));
    }
    return body.toByteArray();
  }

  private byte[] header(int bodyBytes, List<String> metadata) {
    FlatBufferBuilder builder = new FlatBufferBuilder(512);
    List<byte[]> buffers = columns().stream().flatMap(column -> column.buffers().stream()).toList();
    long[] offsets = new long[buffers.size() + 1];
    for (int number = 0; number < buffers.size(); number++) {
      offsets[number + 1] = offsets[number] + padded(buffers.get(number).length);
    }
    RecordBatch.startBuffersVector(builder, buffers.size());
    for (int number = buffers.size() - 1; number >= 0; number--) {
      Buffer.createBuffer(builder, offsets[number], buffers.get(number).length);
    }
    int bufferVector = builder.endVector();
    RecordBatch.startNodesVector(builder, columns().size());
    for (int number = columns().size() - 1; number >= 0; number--) {
      FieldNode.createFieldNode(builder, count, columns().get(number).nulls);
    }
    int nodeVector = builder.endVector();
    RecordBatch.startRecordBatch(builder);
    RecordBatch.addLength(builder, count);
    RecordBatch.addNodes(builder, nodeVector);
    RecordBatch.addBuffers(builder, bufferVector);
    int batch = RecordBatch.endRecordBatch(builder);
    int[] entries = new int[metadata.size() / 2];
    for (int number = 0; number < entries.length; number++) {
      int name = builder.createString(metadata.get(2 * number));
      entries[number] = KeyValue.createKeyValue(builder, name, builder.createString(metadata.get(2 * number + 1)));
    }
    int custom = entries.length == 0 ? 0 : Message.createCustomMetadataVector(builder, entries);
    Message.startMessage(builder);
    if (custom != 0) {
      Message.addCustomMetadata(builder, custom);
    }
    Message.addHeaderType(builder, MessageHeader.RecordBatch);
    Message.addHeader(builder, batch);
    Message.addVersion(builder, MetadataVersion.V5);
    Message.addBodyLength(builder, bodyBytes);
    builder.finish(Message.endMessage(builder));
    return builder.sizedByteArray();
  }

  private static int padded(int length) {
    return length + 7 & ~7;
  }

  private static byte[] schema() {
    ArrowType binary = new ArrowType.Binary();
    ByteBuffer message = MessageSerializer.serializeMetadata(new Schema(List.of(
        Field.nullable("payload", binary), Field.nullable("id", new ArrowType.Int(64, true)),
        Field.nullable("event_time", new ArrowType.Timestamp(TimeUnit.MICROSECOND, "UTC")),
        Field.nullable("type", new ArrowType.Utf8()), Field.nullable("key", binary))), IpcOption.DEFAULT);
    byte[] bytes = new byte[message.remaining()];
    message.get(bytes);
    return bytes;
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
