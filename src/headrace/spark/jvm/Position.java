package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * How far a streaming query has come, as Spark stores it: the same JSON as the Python source writes, byte for byte
 * (`source/offsets.py` says what it means), so a query may change from one to the other at any batch. Immutable, so
 * safe for all threads.
 */
final class Position extends Offset {
  private final String json;
  private final Map<String, OfStream> streams;

  /** One stream: the hub's number of it, where the query began, and the next index, by partition. */
  record OfStream(long id, long[] begin, long[] next) {}

  private Position(String json, Map<String, OfStream> streams) {
    this.json = json;
    this.streams = streams;
  }

  static Position of(Map<String, OfStream> streams, SourceOptions options) {
    ObjectNode root = Hub.request().put("cursor", options.cursor()).put("hub", options.hub().access().address());
    if (options.partitions() != null) {
      options.partitions().forEach(root.putArray("partitions")::add);
    }
    ObjectNode nodes = root.putObject("streams");
    new TreeMap<>(streams).forEach((name, at) -> {
      ObjectNode node = nodes.putObject(name).put("id", at.id);
      Arrays.stream(at.begin).forEach(node.putArray("begin")::add);
      Arrays.stream(at.next).forEach(node.putArray("next")::add);
    });
    StringBuilder text = new StringBuilder();
    write(root, text);
    return new Position(text.toString(), new TreeMap<>(streams));
  }

  static Position parse(String json) throws IOException {
    Map<String, OfStream> streams = new LinkedHashMap<>();
    for (Map.Entry<String, JsonNode> field : Hub.JSON.readTree(json).path("streams").properties()) {
      JsonNode at = field.getValue();
      OfStream stream = new OfStream(at.get("id").asLong(), numbers(at.get("begin")), numbers(at.get("next")));
      streams.put(field.getKey(), stream);
    }
    return new Position(json, streams);
  }

  private static long[] numbers(JsonNode array) {
    long[] numbers = new long[array.size()];
    Arrays.setAll(numbers, number -> array.get(number).asLong());
    return numbers;
  }

  /** As Python's `json.dumps` writes it: a blank behind commas and colons, and only ASCII. */
  private static void write(JsonNode node, StringBuilder out) {
    if (node instanceof ObjectNode object) {
      String separator = "{";
      for (Map.Entry<String, JsonNode> field : object.properties()) {
        quote(field.getKey(), out.append(separator));
        write(field.getValue(), out.append(": "));
        separator = ", ";
      }
      out.append(separator.equals("{") ? "{}" : "}");
    } else if (node instanceof ArrayNode array) {
      String separator = "[";
      for (JsonNode item : array) {
        write(item, out.append(separator));
        separator = ", ";
      }
      out.append(separator.equals("[") ? "[]" : "]");
    } else if (node.isTextual()) {
      quote(node.asText(), out);
    } else {
      out.append(node);
    }
  }

  private static void quote(String text, StringBuilder out) {
    out.append('"');
    for (char character : text.toCharArray()) {
      switch (character) {
        case '"' -> out.append("\\\"");
        case '\\' -> out.append("\\\\");
        case '\n' -> out.append("\\n");
        case '\r' -> out.append("\\r");
        case '\t' -> out.append("\\t");
        case '\f' -> out.append("\\f");
        case '\b' -> out.append("\\b");
        default -> out.append(character < ' ' || character > '~' && character != 127
            ? String.format("\\u%04x", (int) character) : String.valueOf(character));
      }
    }
    out.append('"');
  }

  @Override
  public String json() {
    return json;
  }

  Map<String, OfStream> streams() {
    return streams;
  }

  /** What a batch from `start` to here reads, in the order of stream name and partition. */
  List<Range> since(Position start) {
    List<Range> ranges = new ArrayList<>();
    streams.forEach((name, end) -> {
      OfStream before = start.streams.get(name);
      boolean isKnown = before != null && before.id == end.id;
      for (int partition = 0; partition < end.next.length; partition++) {
        long begin = isKnown && partition < before.next.length ? before.next[partition] : end.begin[partition];
        if (end.next[partition] > begin) {
          ranges.add(new Range(name, partition, begin, end.next[partition]));
        }
      }
    });
    return ranges;
  }

  /** What lies behind this position, of partitions that are read, and is not at the hub. A start may lie there too. */
  List<Range> beyond(Collection<Hub.Stream> states, SourceOptions options) {
    List<Range> missing = new ArrayList<>();
    for (Hub.Stream state : states) {
      OfStream at = streams.get(state.name());
      boolean isKnown = at != null && at.id == state.id();
      for (int partition = 0; isKnown && partition < Math.min(at.next.length, state.partitions()); partition++) {
        long end = state.next()[partition];
        if (options.reads(partition) && at.next[partition] > Math.max(end, at.begin[partition])) {
          missing.add(new Range(state.name(), partition, end, at.next[partition]));
        }
      }
    }
    return missing;
  }

  /** The same, where these ranges begin. */
  Position back(List<Range> missing) {
    Map<String, OfStream> at = new TreeMap<>(streams);
    for (Range range : missing) {
      at.computeIfPresent(range.stream(), (name, of) -> new OfStream(of.id, of.begin, of.next.clone()));
      at.get(range.stream()).next[range.partition()] = range.start();
    }
    return new Position(json, at);
  }

  /** The streams after the next batch: everything there is, or `recordsMax` records shared out by backlog. */
  static Map<String, OfStream> advanced(Position start, Collection<Hub.Stream> states, long recordsMax, Losses losses) {
    Map<String, OfStream> after = new LinkedHashMap<>(start.streams);
    List<Range> goals = new ArrayList<>();
    for (Hub.Stream state : states) {
      OfStream known = after.getOrDefault(state.name(), new OfStream(state.id(), new long[0], new long[0]));
      if (known.id != state.id()) {
        losses.recreated(state, known);
        known = new OfStream(state.id(), new long[0], new long[0]);
      }
      OfStream grown = grown(known, state);
      after.put(state.name(), grown);
      for (int partition = 0; partition < state.partitions(); partition++) {
        // A hub never goes back; should it answer late, a query must not go back with it.
        long begin = grown.next[partition];
        goals.add(new Range(state.name(), partition, begin, Math.max(begin, state.next()[partition])));
      }
    }
    for (Range reached : Range.shared(goals, recordsMax)) {
      after.get(reached.stream()).next[reached.partition()] = reached.end();
    }
    return after;
  }

  /** With the partitions that came into being since; those begin at the first index kept. */
  private static OfStream grown(OfStream known, Hub.Stream state) {
    int old = known.next.length;
    int all = Math.max(old, state.partitions());
    long[] begin = Arrays.copyOf(known.begin, all);
    long[] next = Arrays.copyOf(known.next, all);
    for (int partition = old; partition < all; partition++) {
      begin[partition] = state.first()[partition];
      next[partition] = state.first()[partition];
    }
    return new OfStream(known.id, begin, next);
  }
}
