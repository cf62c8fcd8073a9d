package headrace.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;

/**
 * The few Protocol Buffers messages of Arrow Flight that are needed, by hand. Only functions: safe for all threads.
 *
 * <p>Every length is checked against what is there before it is followed: a message from elsewhere can be malformed,
 * and is an error then, never memory of something else.
 */
final class Proto {
  static final int DATA_HEADER = 2;
  static final int DATA_METADATA = 3;
  static final int DATA_BODY = 1000;
  private static final int VARINT = 0;
  private static final int FIXED_64 = 1;
  private static final int BYTES = 2;
  private static final int FIXED_32 = 5;

  private Proto() {}

  /** Where a field's bytes lie in a message. */
  record Place(int offset, int length) {}

  static void putVarint(ByteArrayOutputStream out, long value) {
    long rest = value;
    while ((rest & ~127L) != 0) {
      out.write((int) (rest & 127 | 128));
      rest >>>= 7;
    }
    out.write((int) rest);
  }

  static void putBytes(ByteArrayOutputStream out, int field, byte[] value) {
    putVarint(out, (long) field << 3 | BYTES);
    putVarint(out, value.length);
    out.write(value, 0, value.length);
  }

  static void putNumber(ByteArrayOutputStream out, int field, long value) {
    putVarint(out, (long) field << 3 | VARINT);
    putVarint(out, value);
  }

  /** The bytes of a field; null when the message lacks it. */
  static byte[] field(byte[] message, int wanted) throws IOException {
    Place place = find(message, wanted);
    return place == null ? null : Arrays.copyOfRange(message, place.offset, place.offset + place.length);
  }

  /** Where the bytes of a field lie; null when the message lacks it. Other fields are passed over by their type. */
  static Place find(byte[] message, int wanted) throws IOException {
    int[] at = {0};
    while (at[0] < message.length) {
      long tag = varint(message, at);
      switch ((int) (tag & 7)) {
        case VARINT -> varint(message, at);
        case FIXED_64 -> at[0] = advanced(message, at[0], 8);
        case FIXED_32 -> at[0] = advanced(message, at[0], 4);
        case BYTES -> {
          long length = varint(message, at);
          int begin = at[0];
          at[0] = advanced(message, begin, length);
          if (tag >>> 3 == wanted) {
            return new Place(begin, (int) length);
          }
        }
        default -> throw new IOException("a message of the hub has a field of unknown type " + (tag & 7));
      }
    }
    return null;
  }

  private static int advanced(byte[] message, int at, long by) throws IOException {
    if (by < 0 || by > message.length - at) {
      throw new IOException("a message of the hub ends inside a field");
    }
    return at + (int) by;
  }

  private static long varint(byte[] message, int[] at) throws IOException {
    long value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at[0] >= message.length) {
        throw new IOException("a message of the hub ends inside a number");
      }
      byte next = message[at[0]++];
      value |= (long) (next & 127) << shift;
      if (next >= 0) {
        return value;
      }
    }
    throw new IOException("a message of the hub has a number of more than ten bytes");
  }
}
