package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Parts of the Java engine without a Spark: a JSON line in is what to do, a JSON line out what came of it. */
public final class Parts {
  private static final HexFormat HEX = HexFormat.of();

  private Parts() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      ObjectNode answer = Hub.request();
      try {
        JsonNode asked = Hub.JSON.readTree(line);
        switch (asked.get("do").asText()) {
          case "hash" -> hashes(asked, answer);
          case "messages" -> messages(asked, answer);
          case "field" -> field(asked, answer);
          case "frame" -> frame(asked, answer);
          case "scan" -> scan(asked, answer);
          case "offset" -> offset(asked, answer);
          case "ranges" -> ranges(asked, answer);
          case "point" -> point(asked, answer);
          default -> throw new IllegalArgumentException(line);
        }
      } catch (Exception error) {
        answer.put("error", error.toString());
      }
      System.out.println(answer);
    }
  }

  private static void hashes(JsonNode asked, ObjectNode answer) {
    ArrayNode hashes = answer.putArray("hashes");
    for (JsonNode key : asked.get("keys")) {
      hashes.add(Long.toUnsignedString(Xxh3.hash(HEX.parseHex(key.asText()))));
    }
  }

  /** The same messages, wherever the bytes are cut in two. */
  private static void messages(JsonNode asked, ObjectNode answer) throws Exception {
    byte[] bytes = HEX.parseHex(asked.get("bytes").asText());
    List<String> expected = null;
    for (int cut = 0; cut <= bytes.length; cut++) {
      List<String> found = new ArrayList<>();
      Messages messages = new Messages(message -> found.add(HEX.formatHex(message)));
      messages.take(Unpooled.wrappedBuffer(bytes, 0, cut));
      messages.take(Unpooled.wrappedBuffer(bytes, cut, bytes.length - cut));
      found.add(messages.isInside() ? "inside" : "whole");
      if (expected != null && !expected.equals(found)) {
        throw new IllegalStateException("cut at " + cut + ": " + found);
      }
      expected = found;
    }
    expected.forEach(answer.putArray("messages")::add);
  }

  private static void field(JsonNode asked, ObjectNode answer) throws Exception {
    byte[] found = Proto.field(HEX.parseHex(asked.get("bytes").asText()), asked.get("number").asInt());
    answer.put("bytes", found == null ? null : HEX.formatHex(found));
  }

  private static void frame(JsonNode asked, ObjectNode answer) throws Exception {
    Frame frame = Frame.of(HEX.parseHex(asked.get("bytes").asText()), Frame.COLUMNS);
    answer.put("rows", frame == null ? -1 : frame.rows);
  }

  /** The payloads and types of a sealed file, by the reader of a task; the hub it names is not there. */
  private static void scan(JsonNode asked, ObjectNode answer) throws Exception {
    Hub.SegmentFile file = new Hub.SegmentFile(asked.get("first").asLong(), asked.get("next").asLong(),
        asked.get("path").asText(), asked.get("bytes").asLong());
    Range range = new Range(asked.get("stream").asText(), 0, asked.get("start").asLong(), asked.get("end").asLong());
    List<String> types = asked.hasNonNull("type") ? List.of(asked.get("type").asText()) : null;
    StructType schema = SourceOptions.ALL_COLUMNS;
    Wanted wanted = new Wanted(new Hub(new Access("127.0.0.1:1", null, null), 0), schema, types, true);
    ArrayNode rows = answer.putArray("rows");
    try (PartitionReader<ColumnarBatch> reader = new PieceReader(wanted, new Piece(range, List.of(file)))) {
      while (reader.next()) {
        ColumnarBatch batch = reader.get();
        for (int row = 0; row < batch.numRows(); row++) {
          ArrayNode values = rows.addArray().add(batch.column(0).getLong(row)).add(batch.column(1).getLong(row));
          for (int column = 2; column < 4; column++) {
            values.add(batch.column(column).isNullAt(row) ? null : Long.valueOf(batch.column(column).getLong(row)));
          }
          values.add(batch.column(4).isNullAt(row) ? null : batch.column(4).getUTF8String(row).toString());
          values.add(batch.column(5).isNullAt(row) ? null : HEX.formatHex(batch.column(5).getBinary(row)));
          values.add(HEX.formatHex(batch.column(6).getBinary(row)));
        }
      }
    }
  }

  private static void offset(JsonNode asked, ObjectNode answer) throws Exception {
    Map<String, String> options = Hub.JSON.convertValue(asked.get("options"),
        Hub.JSON.getTypeFactory().constructMapType(Map.class, String.class, String.class));
    Position parsed = Position.parse(asked.get("json").asText());
    answer.put("json", Position.of(parsed.streams(), SourceOptions.of(options)).json());
  }

  private static void ranges(JsonNode asked, ObjectNode answer) throws Exception {
    JsonNode before = asked.get("before");
    List<Ranges> found = Ranges.of(asked.get("planned").asText(), before.isNull() ? null : before.asText());
    ArrayNode ranges = answer.putArray("ranges");
    found.forEach(one -> one.write(ranges.addObject(), asked.get("hub").asText()));
  }

  private static void point(JsonNode asked, ObjectNode answer) {
    Point point = Point.of("start", asked.get("text").asText());
    answer.put("kind", point.kind().name().toLowerCase()).put("value", point.value());
  }
}
