package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;

/**
 * The few things that Spark asks of a hub. Immutable, so safe for all threads; it travels to executors.
 *
 * <p>A call that meets a hub which is down is repeated until it answers or `waitMs` has passed, so a running query
 * outlives a restart of the hub. All verbs that are called are safe to repeat.
 */
record Hub(Access access, long waitMs) implements Serializable {
  static final ObjectMapper JSON = new ObjectMapper();
  static final long WAIT_MS_DEFAULT = 120_000;
  private static final long CALL_TIMEOUT_MS = 300_000;
  private static final int READ_BATCH_BYTES = 4 << 20;
  private static final int BY_COMMAND = 2;
  private static final byte[] ROWS_SCHEMA = Ipc.schema(Field.nullable("rows", new ArrowType.Binary()));

  /** A stream as the planner sees it: the first index kept and the next index of each partition. */
  record Stream(String name, long id, long[] first, long[] next) {
    int partitions() {
      return first.length;
    }
  }

  /** A sealed file: records `first` up to, not including, `next`. */
  record SegmentFile(long first, long next, String path, long bytes) implements Serializable {}

  /** Waits between attempts, longer each time, until a time is over. For one thread. */
  static final class Patience {
    private static final long PAUSE_MS_FIRST = 50;
    private static final long PAUSE_MS_MOST = 1_000;
    private final Hub hub;
    private long deadlineNs;
    private long pauseMs;

    Patience(Hub hub) {
      this.hub = hub;
      renew();
    }

    /** Something went well: all the time is there again. */
    void renew() {
      deadlineNs = System.nanoTime() + hub.waitMs * 1_000_000L;
      pauseMs = PAUSE_MS_FIRST;
    }

    /** How long to wait before the next attempt; throws what cannot pass, or has not passed in time. */
    long pauseMs(HubError error) throws HubError {
      if (!error.mayPass()) {
        throw error;
      }
      if (System.nanoTime() + pauseMs * 1_000_000L > deadlineNs) {
        throw HubError.unreachable("the hub at " + hub.access + " has not answered for " + hub.waitMs / 1000 + " s: "
            + error.getMessage() + ". Start it with `headrace up`, or say where it is with the option `hub` or the "
            + "variable HEADRACE_HUB");
      }
      long pause = pauseMs;
      pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MOST);
      return pause;
    }

    /** Wait before the next attempt. */
    void pause(HubError error) throws IOException {
      sleep(pauseMs(error));
    }
  }

  static void sleep(long ms) throws IOException {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while waiting for the hub");
    }
  }

  static ObjectNode request() {
    return JSON.createObjectNode();
  }

  /** Call a verb. */
  JsonNode call(String verb, ObjectNode request) throws IOException {
    ByteArrayOutputStream action = new ByteArrayOutputStream();
    Proto.putBytes(action, 1, verb.getBytes(StandardCharsets.UTF_8));
    Proto.putBytes(action, 2, JSON.writeValueAsBytes(request));
    return answered(verb, () -> {
      Call call = Grpc.to(access).call("DoAction", null);
      call.send(action.toByteArray(), true);
      return call;
    });
  }

  /** Call a verb whose field `rows` travels as it is, beside the others. */
  JsonNode call(String verb, ObjectNode request, byte[] rows) throws IOException {
    return answered(verb, () -> {
      Call call = putInto(verb, null);
      call.send(rowsMessage(request, rows), true);
      return call;
    });
  }

  /** A call that has been sent. */
  private interface Sending {
    Call send() throws IOException;
  }

  private JsonNode answered(String verb, Sending sending) throws IOException {
    Patience patience = new Patience(this);
    while (true) {
      try {
        return answer(verb, sending.send());
      } catch (HubError error) {
        patience.pause(error);
      }
    }
  }

  private static JsonNode answer(String verb, Call call) throws IOException {
    try {
      byte[] answer = call.next(CALL_TIMEOUT_MS);
      if (answer == null) {
        throw call.error() != null ? call.error() : HubError.unreachable("no answer to " + verb);
      }
      byte[] body = Proto.field(answer, 1);
      return body == null || body.length == 0 ? JSON.nullNode() : JSON.readTree(body);
    } finally {
      call.cancel();
    }
  }

  /** The streams with these names, or matching these patterns, that exist now. */
  List<Stream> describe(List<String> names) throws IOException {
    ObjectNode request = request();
    names.forEach(request.putArray("names")::add);
    List<Stream> streams = new ArrayList<>();
    for (JsonNode found : call("spark.describe", request)) {
      JsonNode bounds = found.get("bounds");
      long[] first = new long[bounds.size()];
      long[] next = new long[bounds.size()];
      for (int partition = 0; partition < first.length; partition++) {
        first[partition] = bounds.get(partition).get(0).asLong();
        next[partition] = bounds.get(partition).get(1).asLong();
      }
      streams.add(new Stream(found.get("name").asText(), found.get("id").asLong(), first, next));
    }
    return streams;
  }

  /** The sealed files of a stream by partition, oldest first. */
  Map<Integer, List<SegmentFile>> segments(String stream) throws IOException {
    Map<Integer, List<SegmentFile>> files = new HashMap<>();
    for (JsonNode of : call("stream.segments", request().put("stream", stream)).get("partitions")) {
      List<SegmentFile> known = files.computeIfAbsent(of.get("partition").asInt(), number -> new ArrayList<>());
      for (JsonNode file : of.get("segments")) {
        if (file.hasNonNull("path")) {
          known.add(new SegmentFile(file.get("first").asLong(), file.get("next").asLong(), file.get("path").asText(),
              file.get("bytes").asLong()));
        }
      }
    }
    return files;
  }

  /** The first index whose time is not before `timeUs`. */
  long indexAtTime(String stream, int partition, long timeUs) throws IOException {
    ObjectNode request = request().put("stream", stream).put("partition", partition).put("time_us", timeUs);
    return call("stream.index-at-time", request).get("index").asLong();
  }

  /** A producer's last sequence in a partition; -1 when it has stored nothing. */
  long producer(String stream, int partition, String producer) throws IOException {
    ObjectNode request = request().put("stream", stream).put("partition", partition).put("producer", producer);
    JsonNode sequence = call("producer.get", request).get("sequence");
    return sequence.isNull() ? -1 : sequence.asLong();
  }

  /** Begin to read a partition: up to `end`, or without end when it is negative. `types`: null for all. */
  Call read(String stream, int partition, long start, long end, List<String> columns, List<String> types)
      throws IOException {
    ObjectNode ticket = request().put("stream", stream).put("partition", partition).put("start", start);
    if (end >= 0) {
      ticket.put("end", end);
    } else {
      ticket.put("follow", true);
    }
    columns.forEach(ticket.putArray("columns")::add);
    if (types != null) {
      types.forEach(ticket.putArray("types")::add);
    }
    // Of all types, the reader sees a gap and names it; of some, only the hub can tell.
    ticket.put("on_trimmed", types == null ? "skip" : "fail").put("batch_bytes", READ_BATCH_BYTES);
    ByteArrayOutputStream message = new ByteArrayOutputStream();
    Proto.putBytes(message, 1, JSON.writeValueAsBytes(ticket));
    Call call = Grpc.to(access).call("DoGet", null);
    call.send(message.toByteArray(), true);
    return call;
  }

  /** Begin to append to a partition. */
  Call put(String stream, int partition, Consumer<byte[]> listener) throws IOException {
    return put(request().put("stream", stream).put("partition", partition), Rows.SCHEMA, listener);
  }

  /** Begin to call a verb with `rowsMessage`s, each of which is answered in turn. */
  Call putInto(String verb, Consumer<byte[]> listener) throws IOException {
    return put(request().put("verb", verb), ROWS_SCHEMA, listener);
  }

  /** A request of a verb that takes rows. */
  static byte[] rowsMessage(ObjectNode request, byte[] rows) throws IOException {
    List<byte[]> buffers = List.of(new byte[0], Ipc.offsetsOfOne(rows.length), rows);
    byte[] header = Ipc.batch(1, new int[1], buffers, List.of());
    return Ipc.message(header, JSON.writeValueAsBytes(request), Ipc.body(buffers));
  }

  private Call put(ObjectNode command, byte[] schema, Consumer<byte[]> listener) throws IOException {
    ByteArrayOutputStream descriptor = new ByteArrayOutputStream();
    Proto.putNumber(descriptor, 1, BY_COMMAND);
    Proto.putBytes(descriptor, 2, JSON.writeValueAsBytes(command));
    ByteArrayOutputStream message = new ByteArrayOutputStream();
    Proto.putBytes(message, 1, descriptor.toByteArray());
    Proto.putBytes(message, Proto.DATA_HEADER, schema);
    Call call = Grpc.to(access).call("DoPut", listener);
    call.send(message.toByteArray(), false);
    return call;
  }
}
