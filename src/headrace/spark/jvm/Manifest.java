package headrace.spark;

import java.io.IOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.zip.CRC32C;

/**
 * What a segment says of itself: MessagePack, and behind it the CRC-32C of that. Immutable, so safe for all threads.
 * `log/segment.py` defines it; `types` is null where there are too many to list.
 */
record Manifest(String stream, long partition, long first, long next, List<Batch> batches, Set<String> types) {
  /** One record batch: its first index, how many records, and the checksum of its contents. */
  record Batch(long first, long count, long crc) {}

  static Manifest of(byte[] stored) throws IOException {
    int size = stored.length - 4;
    if (size < 0) {
      throw new IOException("the manifest is cut off");
    }
    CRC32C crc = new CRC32C();
    crc.update(stored, 0, size);
    if ((int) crc.getValue() != ByteBuffer.wrap(stored, size, 4).order(ByteOrder.LITTLE_ENDIAN).getInt()) {
      throw new IOException("the manifest fails its checksum");
    }
    try {
      return new Reader(ByteBuffer.wrap(stored, 0, size)).manifest();
    } catch (BufferUnderflowException | IllegalArgumentException malformed) {
      throw new IOException("the manifest cannot be read", malformed);
    }
  }

  /** MessagePack, as far as manifests use it. Fields that a later version adds at an end are passed over. */
  private static final class Reader {
    private final ByteBuffer in;

    Reader(ByteBuffer in) {
      this.in = in;
    }

    Manifest manifest() throws IOException {
      int fields = array();
      String stream = text();
      number();
      long partition = number();
      long first = number();
      long next = number();
      List<Batch> batches = new ArrayList<>();
      for (int left = array(); left > 0; left--) {
        int parts = array();
        batches.add(new Batch(number(), number(), number()));
        for (int more = 3; more < parts; more++) {
          number();
        }
      }
      return new Manifest(stream, partition, first, next, batches, fields > 6 ? types() : null);
    }

    private Set<String> types() throws IOException {
      if ((in.get(in.position()) & 255) == 0xc0) {
        return null;
      }
      Set<String> types = new HashSet<>();
      for (int left = array(); left > 0; left--) {
        types.add(text());
      }
      return types;
    }

    private int array() throws IOException {
      int head = in.get() & 255;
      if (head >> 4 == 9) {
        return head & 15;
      }
      return switch (head) {
        case 0xdc -> in.getShort() & 65_535;
        case 0xdd -> in.getInt();
        default -> throw new IOException("the manifest has something else where a list belongs");
      };
    }

    private long number() throws IOException {
      int head = in.get();
      if (head >= -32) {
        return head;
      }
      return switch (head & 255) {
        case 0xcc -> in.get() & 255;
        case 0xcd -> in.getShort() & 65_535;
        case 0xce -> in.getInt() & 0xffff_ffffL;
        case 0xcf, 0xd3 -> in.getLong();
        case 0xd0 -> in.get();
        case 0xd1 -> in.getShort();
        case 0xd2 -> in.getInt();
        default -> throw new IOException("the manifest has something else where a number belongs");
      };
    }

    private String text() throws IOException {
      int head = in.get() & 255;
      int length = head >> 5 == 5 ? head & 31 : switch (head) {
        case 0xd9 -> in.get() & 255;
        case 0xda -> in.getShort() & 65_535;
        case 0xdb -> in.getInt();
        default -> throw new IOException("the manifest has something else where a text belongs");
      };
      if (length < 0 || length > in.remaining()) {
        throw new IOException("the manifest is cut off");
      }
      byte[] bytes = new byte[length];
      in.get(bytes);
      return new String(bytes, StandardCharsets.UTF_8);
    }
  }
}
