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
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/** Messages of Arrow IPC, as far as a writer needs them. Only functions: safe for all threads. */
final class Ipc {
  private Ipc() {}

  static byte[] schema(Field... fields) {
    ByteBuffer message = MessageSerializer.serializeMetadata(new Schema(List.of(fields)), IpcOption.DEFAULT);
    byte[] bytes = new byte[message.remaining()];
    message.get(bytes);
    return bytes;
  }

  /** The header of a record batch; `metadata` is names and values by turns. */
  static byte[] batch(int rows, int[] nulls, List<byte[]> buffers, List<String> metadata) {
    FlatBufferBuilder builder = new FlatBufferBuilder(512);
    long[] offsets = new long[buffers.size() + 1];
    for (int number = 0; number < buffers.size(); number++) {
      offsets[number + 1] = offsets[number] + padded(buffers.get(number).length);
    }
    RecordBatch.startBuffersVector(builder, buffers.size());
    for (int number = buffers.size() - 1; number >= 0; number--) {
      Buffer.createBuffer(builder, offsets[number], buffers.get(number).length);
    }
    int bufferVector = builder.endVector();
    RecordBatch.startNodesVector(builder, nulls.length);
    for (int number = nulls.length - 1; number >= 0; number--) {
      FieldNode.createFieldNode(builder, rows, nulls[number]);
    }
    int nodeVector = builder.endVector();
    RecordBatch.startRecordBatch(builder);
    RecordBatch.addLength(builder, rows);
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
    Message.addBodyLength(builder, offsets[buffers.size()]);
    builder.finish(Message.endMessage(builder));
    return builder.sizedByteArray();
  }

  /** The body of a record batch: its buffers, each to a multiple of eight. */
  static byte[] body(List<byte[]> buffers) {
    byte[] body = new byte[buffers.stream().mapToInt(buffer -> padded(buffer.length)).sum()];
    int at = 0;
    for (byte[] buffer : buffers) {
      System.arraycopy(buffer, 0, body, at, buffer.length);
      at += padded(buffer.length);
    }
    return body;
  }

  /** A record batch as a message of a put, with `metadata` beside it unless it is null. */
  static byte[] message(byte[] header, byte[] metadata, byte[] body) {
    ByteArrayOutputStream message = new ByteArrayOutputStream(body.length + header.length + 512);
    Proto.putBytes(message, Proto.DATA_HEADER, header);
    if (metadata != null) {
      Proto.putBytes(message, Proto.DATA_METADATA, metadata);
    }
    Proto.putBytes(message, Proto.DATA_BODY, body);
    return message.toByteArray();
  }

  /** The offsets of a column of binary values with one value. */
  static byte[] offsetsOfOne(int length) {
    return ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putInt(0).putInt(length).array();
  }

  /** Metadata as it is written in a stream. */
  static void encapsulate(ByteArrayOutputStream out, byte[] metadata) {
    int size = padded(metadata.length);
    out.writeBytes(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putInt(-1).putInt(size).array());
    out.writeBytes(Arrays.copyOf(metadata, size));
  }

  private static int padded(int length) {
    return length + 7 & ~7;
  }
}
