package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * How far a batch read a stream, and from where, by partition; null where it is not read. `read_ranges` of
 * `source/offsets.py` has the same rules. Immutable, so safe for all threads.
 */
record Ranges(String hub, String cursor, String stream, Long[] first, Long[] next) {
  /** From the offsets that Spark planned, a line for each source; those of the batch before are null if not known. */
  static List<Ranges> of(String planned, String before) throws IOException {
    Map<String, Ranges> found = new LinkedHashMap<>();
    String[] lines = planned.split("\n");
    String[] known = before == null ? new String[0] : before.split("\n");
    for (int number = 0; number < lines.length; number++) {
      if (lines[number].startsWith("{")) {
        boolean isKnown = number < known.length && known[number].startsWith("{");
        Position start = Position.parse(isKnown ? known[number] : "{}");
        for (Ranges one : ofSource(lines[number], start, before != null)) {
          found.merge(one.hub + " " + one.cursor + " " + one.stream, one, Ranges::slower);
        }
      }
    }
    return new ArrayList<>(found.values());
  }

  private static List<Ranges> ofSource(String json, Position start, boolean isStartKnown) throws IOException {
    JsonNode offset = Hub.JSON.readTree(json);
    String cursor = offset.path("cursor").isTextual() ? offset.get("cursor").asText() : null;
    List<Ranges> ranges = new ArrayList<>();
    Position.parse(json).streams().forEach((stream, at) -> {
      Position.OfStream before = start.streams().get(stream);
      long[] begins = at.begin().clone();
      if (before != null && before.id() == at.id()) {
        System.arraycopy(before.next(), 0, begins, 0, Math.min(begins.length, before.next().length));
      }
      Long[] first = isStartKnown ? read(begins, offset.get("partitions")) : new Long[0];
      Long[] next = read(at.next(), offset.get("partitions"));
      ranges.add(new Ranges(offset.path("hub").asText(), cursor, stream, first, next));
    });
    return ranges;
  }

  private static Long[] read(long[] indexes, JsonNode only) {
    Long[] read = new Long[indexes.length];
    for (int partition = 0; partition < read.length; partition++) {
      boolean isRead = only == null;
      for (int number = 0; only != null && number < only.size(); number++) {
        isRead |= only.get(number).asInt() == partition;
      }
      read[partition] = isRead ? indexes[partition] : null;
    }
    return read;
  }

  /** Two sources of one query that read the same stream: what one of them has still to read is not read yet. */
  private Ranges slower(Ranges other) {
    return new Ranges(hub, cursor, stream, slower(first, other.first), slower(next, other.next));
  }

  private static Long[] slower(Long[] left, Long[] right) {
    Long[] slower = new Long[Math.min(left.length, right.length)];
    Arrays.setAll(slower, at -> left[at] == null ? right[at] : right[at] == null ? left[at]
        : Long.valueOf(Math.min(left[at], right[at])));
    return slower;
  }

  /** As the hub at `address` takes it; a cursor counts only there. */
  void write(ObjectNode out, String address) {
    out.put("cursor", hub.equals(address) ? cursor : null).put("stream", stream);
    ArrayNode firsts = out.putArray("first");
    Arrays.stream(first).forEach(firsts::add);
    ArrayNode nexts = out.putArray("next");
    Arrays.stream(next).forEach(nexts::add);
  }
}
