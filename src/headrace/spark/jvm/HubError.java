package headrace.spark;

import java.io.IOException;
import java.util.Set;

/**
 * What the hub refused, or why it could not be asked. Immutable, so safe for all threads.
 *
 * <p>The message begins with the name that the same error has in Python (`Fenced: …`), which is how `headrace pipeline
 * run` knows those that come back however often one tries.
 */
final class HubError extends IOException {
  private static final long serialVersionUID = 1L;
  private static final Set<String> PASSING =
      Set.of("unreachable", "busy", "closed", "not-here", "log-failed", "disk-full", "store-unavailable");
  final String code;

  HubError(String code, String text) {
    super(nameOf(code) + ": " + text);
    this.code = code;
  }

  static HubError unreachable(String text) {
    return new HubError("unreachable", text);
  }

  static HubError unknown(String stream) {
    return new HubError("unknown-stream", "stream '" + stream
        + "' does not exist; create it first, or list streams to see the names");
  }

  /** Records that were asked for and are gone; `last` is one of them. */
  static HubError lost(String stream, int partition, long first, long last, String why) {
    return new HubError("data-loss", "stream '" + stream + "' partition " + partition + ": indexes " + first + " to "
        + last + " were asked for and are gone: " + why + ". Set failOnDataLoss=false to continue without them");
  }

  static HubError damaged(String stream, int partition, long first, long last, String path) {
    return new HubError("damaged", "stream '" + stream + "' partition " + partition + ": indexes " + first + " to "
        + last + " are damaged in " + path + ": they are never served as data. `headrace doctor` says more");
  }

  /** Whether the same call may succeed later, without anybody changing it. */
  boolean mayPass() {
    return PASSING.contains(code);
  }

  /** `batch-changed` is `BatchChanged`. */
  static String nameOf(String code) {
    StringBuilder name = new StringBuilder();
    for (String word : code.split("-")) {
      name.append(Character.toUpperCase(word.charAt(0))).append(word.substring(1));
    }
    return name.toString();
  }
}
