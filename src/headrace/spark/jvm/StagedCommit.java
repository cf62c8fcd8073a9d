package headrace.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * The driver's side of staged rows: one commit makes all of them part of the log, together with the batch and a digest
 * that says which batch this is. Only functions: safe for all threads. `sink/writers.py` has the same rules.
 */
final class StagedCommit {
  private static final long ABORT_WAIT_MS = 2_000;
  private static final int RUNS_KEPT = 64;
  /** What runs committed last: Spark makes a sink for each batch, and would have to read it from the checkpoint. */
  private static final Map<String, Planned> LAST = new LinkedHashMap<>(RUNS_KEPT, 0.75f, true) {
    private static final long serialVersionUID = 1;

    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Planned> eldest) {
      return size() > RUNS_KEPT;
    }
  };

  /** What Spark planned for a batch: the offsets of its sources, a line each. */
  private record Planned(long batch, String offsets) {}

  private StagedCommit() {}

  /** Commit a micro-batch. The digest is one of the source offsets that Spark wrote down before it ran the batch. */
  static void ofBatch(SinkOptions options, long batch, WriterCommitMessage[] messages) throws IOException {
    String planned = options.checkpoint() == null ? null : planned(options.checkpoint(), batch);
    List<Stager.Part> parts = parts(messages);
    if (parts.isEmpty()) {
      return;
    }
    // Without a checkpoint of its own a query never comes back: its run says enough.
    String run = parts.get(0).run();
    String digest = planned == null ? "run:" + run : "offsets:" + sha256(planned).substring(0, 32);
    List<Ranges> sources = planned == null ? List.of() : Ranges.of(planned, before(options, run, batch));
    commit(options, batch, parts, digest, sources);
    synchronized (LAST) {
      LAST.put(run, new Planned(batch, planned));
    }
  }

  /** Commit a batch write without a name: nobody compares it with anything. */
  static void ofWrite(SinkOptions options, WriterCommitMessage[] messages) throws IOException {
    List<Stager.Part> parts = parts(messages);
    if (!parts.isEmpty()) {
      long rows = parts.stream().mapToLong(Stager.Part::rows).sum();
      commit(options, 0, parts, "rows:" + rows + ":0000000000000000", List.of());
    }
  }

  private static List<Stager.Part> parts(WriterCommitMessage[] messages) {
    return Arrays.stream(messages).filter(Stager.Part.class::isInstance).map(Stager.Part.class::cast)
        .sorted(Comparator.comparingInt(Stager.Part::part)).toList();
  }

  private static void commit(SinkOptions options, long batch, List<Stager.Part> parts, String digest,
      List<Ranges> sources) throws IOException {
    ObjectNode request = Hub.request().put("query", parts.get(0).query()).put("run", parts.get(0).run())
        .put("batch", batch).put("digest", digest).put("partitions", options.partitions());
    ArrayNode staged = request.putArray("parts");
    for (Stager.Part part : parts) {
      if (part.size() > 0) {
        staged.addObject().put("part", part.part()).put("attempt", part.attempt()).put("size", part.size())
            .put("crc", part.crc());
      }
    }
    ArrayNode read = request.putArray("sources");
    sources.forEach(source -> source.write(read.addObject(), options.hub().access().address()));
    options.hub().call("spark.commit", request);
  }

  /** Drop what was staged. Best effort: the hub drops leftovers by itself later. */
  static void abort(SinkOptions options, long batch, WriterCommitMessage[] messages) {
    List<Stager.Part> parts = parts(messages);
    if (!parts.isEmpty()) {
      ObjectNode request = Hub.request().put("query", parts.get(0).query()).put("run", parts.get(0).run());
      try {
        new Hub(options.hub().access(), ABORT_WAIT_MS).call("spark.abort", request.put("batch", batch));
      } catch (IOException ignored) {
        // the hub removes it
      }
    }
  }

  /** The offsets of the batch before, empty for the first; null when Spark does not keep them any more. */
  private static String before(SinkOptions options, String run, long batch) throws IOException {
    synchronized (LAST) {
      Planned last = LAST.get(run);
      if (last != null && last.batch == batch - 1) {
        return last.offsets;
      }
    }
    try {
      return batch == 0 ? "" : plannedOffsets(options.checkpoint(), batch - 1);
    } catch (FileNotFoundException gone) {
      return null;
    }
  }

  private static String planned(String checkpoint, long batch) throws IOException {
    try {
      return plannedOffsets(checkpoint, batch);
    } catch (FileNotFoundException missing) {
      throw new IOException("Spark has not written down what batch " + batch + " reads: in real-time mode a sink needs "
          + "spark.sql.extensions=headrace.spark.Extensions, which headrace.spark.session() sets", missing);
    }
  }

  /** What Spark planned for a batch: the offsets of its sources, a line each. */
  private static String plannedOffsets(String checkpoint, long batch) throws IOException {
    Path path = new Path(new Path(checkpoint, "offsets"), Long.toString(batch));
    FileSystem files = path.getFileSystem(SparkSession.active().sessionState().newHadoopConf());
    try (InputStream file = files.open(path)) {
      // Line 1 is the version and line 2 holds times and settings, which may differ between two plans of one batch.
      return new String(file.readAllBytes(), StandardCharsets.UTF_8).split("\n", 3)[2];
    }
  }

  private static String sha256(String text) {
    try {
      byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
      return HexFormat.of().formatHex(digest);
    } catch (NoSuchAlgorithmException impossible) {
      throw new IllegalStateException(impossible);  // every Java has it
    }
  }
}
