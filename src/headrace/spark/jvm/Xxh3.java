package headrace.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.HexFormat;

/**
 * XXH3, 64 bits, without a seed: the hash that puts a key into a partition, the same as in Python. Only functions: safe
 * for all threads. Written from the published specification; `tests/spark/test_java_parts.py` compares the two.
 */
final class Xxh3 {
  private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
  private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final long PRIME32_1 = 0x9E3779B1L;
  private static final long PRIME32_2 = 0x85EBCA77L;
  private static final long PRIME32_3 = 0xC2B2AE3DL;
  private static final long PRIME64_1 = 0x9E3779B185EBCA87L;
  private static final long PRIME64_2 = 0xC2B2AE3D27D4EB4FL;
  private static final long PRIME64_3 = 0x165667B19E3779F9L;
  private static final long PRIME64_4 = 0x85EBCA77C2B2AE63L;
  private static final long PRIME64_5 = 0x27D4EB2F165667C5L;
  private static final long PRIME_MX1 = 0x165667919E3779F9L;
  private static final long PRIME_MX2 = 0x9FB21C651E98DF25L;
  private static final int STRIPE_BYTES = 64;
  private static final byte[] SECRET = HexFormat.of().parseHex(
      "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
          + "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
          + "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
          + "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e");

  private Xxh3() {}

  static long hash(byte[] input) {
    int length = input.length;
    if (length <= 16) {
      return upTo16(input, length);
    }
    if (length <= 128) {
      return upTo128(input, length);
    }
    return length <= 240 ? upTo240(input, length) : longer(input, length);
  }

  private static long upTo16(byte[] input, int length) {
    if (length > 8) {
      long flip1 = secret(24) ^ secret(32);
      long flip2 = secret(40) ^ secret(48);
      long low = read64(input, 0) ^ flip1;
      long high = read64(input, length - 8) ^ flip2;
      return avalanche(length + Long.reverseBytes(low) + high + folded(low, high));
    }
    if (length >= 4) {
      long mixed = read32(input, length - 4) + (read32(input, 0) << 32) ^ secret(8) ^ secret(16);
      mixed ^= Long.rotateLeft(mixed, 49) ^ Long.rotateLeft(mixed, 24);
      mixed *= PRIME_MX2;
      mixed ^= (mixed >>> 35) + length;
      mixed *= PRIME_MX2;
      return mixed ^ mixed >>> 28;
    }
    if (length > 0) {
      long first = input[0] & 255;
      long middle = input[length >> 1] & 255;
      long last = input[length - 1] & 255;
      long combined = first << 16 | middle << 24 | last | (long) length << 8;
      long flip = ((int) INT.get(SECRET, 0) ^ (int) INT.get(SECRET, 4)) & 0xffff_ffffL;
      return avalanche64(combined ^ flip);
    }
    return avalanche64(secret(56) ^ secret(64));
  }

  private static long upTo128(byte[] input, int length) {
    long sum = length * PRIME64_1;
    for (int pair = (length - 1) / 32; pair >= 0; pair--) {
      sum += mix16(input, 16 * pair, 32 * pair);
      sum += mix16(input, length - 16 * (pair + 1), 32 * pair + 16);
    }
    return avalanche(sum);
  }

  private static long upTo240(byte[] input, int length) {
    long sum = length * PRIME64_1;
    for (int number = 0; number < 8; number++) {
      sum += mix16(input, 16 * number, 16 * number);
    }
    sum = avalanche(sum);
    for (int number = 8; number < length / 16; number++) {
      sum += mix16(input, 16 * number, 16 * (number - 8) + 3);
    }
    return avalanche(sum + mix16(input, length - 16, 136 - 17));
  }

  private static long longer(byte[] input, int length) {
    long[] sums = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    int stripesPerBlock = (SECRET.length - STRIPE_BYTES) / 8;
    int blockBytes = STRIPE_BYTES * stripesPerBlock;
    int blocks = (length - 1) / blockBytes;
    for (int block = 0; block < blocks; block++) {
      for (int stripe = 0; stripe < stripesPerBlock; stripe++) {
        accumulate(sums, input, block * blockBytes + stripe * STRIPE_BYTES, 8 * stripe);
      }
      scramble(sums);
    }
    int stripes = (length - 1 - blockBytes * blocks) / STRIPE_BYTES;
    for (int stripe = 0; stripe < stripes; stripe++) {
      accumulate(sums, input, blocks * blockBytes + stripe * STRIPE_BYTES, 8 * stripe);
    }
    accumulate(sums, input, length - STRIPE_BYTES, SECRET.length - STRIPE_BYTES - 7);
    long merged = length * PRIME64_1;
    for (int pair = 0; pair < 4; pair++) {
      merged += folded(sums[2 * pair] ^ secret(11 + 16 * pair), sums[2 * pair + 1] ^ secret(11 + 16 * pair + 8));
    }
    return avalanche(merged);
  }

  private static void accumulate(long[] sums, byte[] input, int at, int key) {
    for (int lane = 0; lane < 8; lane++) {
      long value = read64(input, at + 8 * lane);
      long keyed = value ^ secret(key + 8 * lane);
      sums[lane ^ 1] += value;
      sums[lane] += (keyed & 0xffff_ffffL) * (keyed >>> 32);
    }
  }

  private static void scramble(long[] sums) {
    for (int lane = 0; lane < 8; lane++) {
      long sum = sums[lane];
      sums[lane] = (sum ^ sum >>> 47 ^ secret(SECRET.length - STRIPE_BYTES + 8 * lane)) * PRIME32_1;
    }
  }

  private static long mix16(byte[] input, int at, int key) {
    return folded(read64(input, at) ^ secret(key), read64(input, at + 8) ^ secret(key + 8));
  }

  private static long folded(long left, long right) {
    long high = Math.multiplyHigh(left, right) + ((left >> 63) & right) + ((right >> 63) & left);
    return left * right ^ high;
  }

  private static long avalanche(long value) {
    long mixed = (value ^ value >>> 37) * PRIME_MX1;
    return mixed ^ mixed >>> 32;
  }

  private static long avalanche64(long value) {
    long mixed = (value ^ value >>> 33) * PRIME64_2;
    mixed = (mixed ^ mixed >>> 29) * PRIME64_3;
    return mixed ^ mixed >>> 32;
  }

  private static long read64(byte[] input, int at) {
    return (long) LONG.get(input, at);
  }

  private static long read32(byte[] input, int at) {
    return (int) INT.get(input, at) & 0xffff_ffffL;
  }

  private static long secret(int at) {
    return (long) LONG.get(SECRET, at);
  }
}
