package headrace.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.zip.CRC32C;
import org.apache.arrow.flatbuf.Block;
import org.apache.arrow.flatbuf.Footer;
import org.apache.arrow.flatbuf.KeyValue;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.util.MemoryUtil;

/**
 * A sealed segment, mapped into memory. For one thread.
 *
 * <p>Invariant: no record batch is handed out before it has passed its checksum. The checksum is that of
 * `content_crc` in `log/segment.py`: of what the columns say, not of the file's bytes.
 *
 * <pre>
 * end − 10   u32   size of the footer, then "ARROW1"
 * footer           flatbuffer; the schema's metadata "headrace" is the manifest
 * block            u32 FFFFFFFF, u32 length, Message flatbuffer padded to 8, body
 * </pre>
 */
final class Segment {
  private static final String MAGIC = "ARROW1";
  private static final int BLOCK_PREFIX_BYTES = 8;
  private static final byte[] ALL_NULL = "all null".getBytes(StandardCharsets.US_ASCII);
  final Manifest manifest;
  private final MappedByteBuffer map;
  private final long address;
  private final Footer footer;

  /** Opens a file; IOException where it cannot be read, or is not the segment that the hub has told of. */
  Segment(Hub.SegmentFile file, String stream, int partition) throws IOException {
    try (FileChannel channel = FileChannel.open(Path.of(file.path()), StandardOpenOption.READ)) {
      if (channel.size() != file.bytes() || channel.size() > Integer.MAX_VALUE || channel.size() < 16) {
        throw new IOException(file.path() + " has another size than the hub says");
      }
      map = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
    }
    map.order(ByteOrder.LITTLE_ENDIAN);
    address = MemoryUtil.getByteBufferAddress(map);
    try {
      footer = footer(file.path());
      manifest = manifest(file.path());
      boolean isSame = manifest.stream().equals(stream) && manifest.partition() == partition
          && manifest.first() == file.first() && manifest.next() == file.next();
      if (!isSame || manifest.batches().size() != footer.recordBatchesLength()) {
        throw new IOException(file.path() + " is another segment");
      }
    } catch (IndexOutOfBoundsException | IllegalArgumentException malformed) {
      throw new IOException(file.path() + " is not a segment", malformed);
    }
  }

  private Footer footer(String path) throws IOException {
    int end = map.capacity() - MAGIC.length() - 4;
    int size = map.getInt(end);
    byte[] magic = new byte[MAGIC.length()];
    map.get(end + 4, magic);
    if (size <= 0 || size > end || !MAGIC.equals(new String(magic, StandardCharsets.US_ASCII))) {
      throw new IOException(path + " does not end as an Arrow file");
    }
    return Footer.getRootAsFooter(map.slice(end - size, size).order(ByteOrder.LITTLE_ENDIAN));
  }

  private Manifest manifest(String path) throws IOException {
    for (int number = 0; number < footer.schema().customMetadataLength(); number++) {
      KeyValue entry = footer.schema().customMetadata(number);
      if ("headrace".equals(entry.key())) {
        ByteBuffer value = entry.valueAsByteBuffer();
        byte[] stored = new byte[value.remaining()];
        value.get(stored);
        return Manifest.of(stored);
      }
    }
    throw new IOException(path + " has no manifest");
  }

  /** A record batch, checked. IOException when it fails its checksum. */
  Frame frame(int number) throws IOException {
    Manifest.Batch expected = manifest.batches().get(number);
    try {
      Block block = footer.recordBatches(number);
      int head = Math.toIntExact(block.offset());
      int body = Math.addExact(head, block.metaDataLength());
      int size = Math.toIntExact(block.bodyLength());
      ByteBuffer metadata = map.slice(head + BLOCK_PREFIX_BYTES, block.metaDataLength() - BLOCK_PREFIX_BYTES);
      Message message = Message.getRootAsMessage(metadata.order(ByteOrder.LITTLE_ENDIAN));
      if (message.headerType() != MessageHeader.RecordBatch || size < 0 || size > map.capacity() - body) {
        throw new IOException("not a record batch");
      }
      RecordBatch batch = (RecordBatch) message.header(new RecordBatch());
      if (batch.length() != expected.count() || batch.nodesLength() != Frame.COLUMNS.size()
          || crc(batch, body, size) != (int) expected.crc()) {
        throw new IOException("the records fail their checksum");
      }
      return new Frame(null, address + body, size, map, batch, Frame.COLUMNS);
    } catch (IndexOutOfBoundsException | IllegalArgumentException | ArithmeticException malformed) {
      throw new IOException("the record batch is malformed", malformed);
    }
  }

  private int crc(RecordBatch batch, int body, int size) throws IOException {
    int rows = Math.toIntExact(batch.length());
    CRC32C crc = new CRC32C();
    update(crc, rows);
    int buffer = 0;
    for (int column = 0; column < Frame.COLUMNS.size(); column++) {
      long nulls = batch.nodes(column).nullCount();
      update(crc, nulls);
      boolean isOfBytes = Frame.isOfBytes(Frame.COLUMNS.get(column));
      int validity = body + Frame.place(batch, buffer, nulls > 0 ? (rows + 7) / 8 : 0, size);
      if (nulls == 0 || updateValidity(crc, validity, rows)) {
        updateValues(crc, batch, buffer + 1, isOfBytes, rows, body, size);
      }
      buffer += isOfBytes ? 3 : 2;
    }
    return (int) crc.getValue();
  }

  private void updateValues(CRC32C crc, RecordBatch batch, int buffer, boolean isOfBytes, int rows, int body, int size)
      throws IOException {
    if (!isOfBytes) {
      update(crc, body + Frame.place(batch, buffer, 8L * rows, size), 8 * rows);
      return;
    }
    int offsets = body + Frame.place(batch, buffer, 4L * (rows + 1), size);
    update(crc, offsets, 4 * (rows + 1));
    int end = map.getInt(offsets + 4 * rows);
    if (end < 0) {
      throw new IOException("offsets go back");
    }
    update(crc, body + Frame.place(batch, buffer + 1, end, size), end);
  }

  /** Which rows are there, where some but not all are; false when none is, and values mean nothing. */
  private boolean updateValidity(CRC32C crc, int at, int rows) {
    byte[] bits = new byte[(rows + 7) / 8];
    map.get(at, bits);
    int spare = 8 * bits.length - rows;
    bits[bits.length - 1] &= (byte) (255 >> spare);
    int present = 0;
    for (int number = 0; number < bits.length; number++) {
      present += Integer.bitCount(bits[number] & 255);
      bits[number] = (byte) (Integer.reverse(bits[number]) >>> 24);  // the checksum takes them from the other end
    }
    if (present == 0) {
      crc.update(ALL_NULL);
    } else if (present < rows) {
      crc.update(bits);
    }
    return present > 0;
  }

  private void update(CRC32C crc, int at, int length) {
    crc.update(map.duplicate().position(at).limit(at + length));
  }

  private static void update(CRC32C crc, long number) {
    for (int shift = 0; shift < 64; shift += 8) {
      crc.update((int) (number >>> shift) & 255);
    }
  }
}
