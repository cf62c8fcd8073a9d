package headrace.spark;

import io.netty.buffer.ByteBuf;
import java.io.IOException;
import java.util.function.Consumer;

/**
 * gRPC's framing: cuts the bytes of a call into messages, however they arrive. For the network's thread alone.
 *
 * <pre>
 * offset 0   u8    0 (not compressed)
 * offset 1   u32   length of the message, big endian
 * offset 5         the message
 * </pre>
 */
final class Messages {
  static final int HEADER_BYTES = 5;
  static final int MESSAGE_BYTES_MAX = 64 << 20;
  private final Consumer<byte[]> deliver;
  private byte[] part = new byte[HEADER_BYTES];
  private int filled;
  private boolean inHeader = true;

  Messages(Consumer<byte[]> deliver) {
    this.deliver = deliver;
  }

  /** Take bytes. A message that is too large is refused before memory is taken for it. */
  void take(ByteBuf bytes) throws IOException {
    while (bytes.isReadable()) {
      int count = Math.min(bytes.readableBytes(), part.length - filled);
      bytes.readBytes(part, filled, count);
      filled += count;
      if (filled < part.length) {
        return;
      }
      if (inHeader) {
        begin(length());
      } else {
        finish();
      }
    }
  }

  /** Whether a message has begun and not ended. */
  boolean isInside() {
    return !inHeader || filled > 0;
  }

  private long length() throws IOException {
    if (part[0] != 0) {
      throw new IOException("the hub sent a compressed message, which nobody asked for");
    }
    return (part[1] & 255L) << 24 | (part[2] & 255L) << 16 | (part[3] & 255L) << 8 | part[4] & 255L;
  }

  private void begin(long length) throws IOException {
    if (length > MESSAGE_BYTES_MAX) {
      throw new IOException("the hub sent a message of " + length + " bytes, above " + MESSAGE_BYTES_MAX
          + "; use engine=python for records that large");
    }
    part = new byte[(int) length];
    filled = 0;
    inHeader = false;
    if (length == 0) {
      finish();
    }
  }

  private void finish() {
    byte[] message = part;
    part = new byte[HEADER_BYTES];
    filled = 0;
    inHeader = true;
    deliver.accept(message);
  }
}
