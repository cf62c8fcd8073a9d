package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.Serializable;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;

/**
 * Where to start or end: `EARLIEST`, `LATEST`, `CURSOR`, an index, a time in microseconds, or positions: an index for
 * each partition by stream, as JSON. Immutable, so safe for all threads.
 */
record Point(Kind kind, long value, String positions) implements Serializable {
  enum Kind { EARLIEST, LATEST, CURSOR, INDEX, TIME, POSITIONS }

  private static final String EXPECTED = "earliest, latest, an index, or a time such as 2026-11-15T08:00:00Z";

  static Point of(String option, String text) {
    String word = text.strip();
    if (word.startsWith("{")) {
      return new Point(Kind.POSITIONS, 0, checkedPositions(option, word));
    }
    return switch (word) {
      case "earliest" -> new Point(Kind.EARLIEST, 0, null);
      case "latest" -> new Point(Kind.LATEST, 0, null);
      case "cursor" -> new Point(Kind.CURSOR, 0, null);
      default -> isNumber(word)
          ? new Point(Kind.INDEX, Options.index(option, word), null)
          : new Point(Kind.TIME, microseconds(option, word), null);
    };
  }

  private static boolean isNumber(String word) {
    return !word.isEmpty() && word.chars().allMatch(character -> character >= '0' && character <= '9');
  }

  private static String checkedPositions(String option, String text) {
    try {
      for (JsonNode indexes : Hub.JSON.readTree(text)) {
        for (JsonNode index : indexes) {
          if (!indexes.isArray() || !index.isIntegralNumber() || index.asLong() < 0) {
            throw new IOException(index + " is not an index");
          }
        }
      }
      return text;
    } catch (IOException error) {
      throw new BadOption(option, text,
          "an index for each partition by stream, as {\"orders\": [17, 4]}: " + error.getMessage());
    }
  }

  /** The index for a partition, where `positions` has one; -1 otherwise. */
  long position(String stream, int partition) {
    try {
      JsonNode index = Hub.JSON.readTree(positions).path(stream).path(partition);
      return index.isMissingNode() ? -1 : index.asLong();
    } catch (IOException impossible) {
      throw new IllegalStateException(impossible);  // it was read before
    }
  }

  /** A time of ISO 8601; one without a zone is UTC. */
  private static long microseconds(String option, String word) {
    try {
      Instant moment;
      if (word.length() == "2026-11-15".length()) {
        moment = LocalDate.parse(word).atStartOfDay(ZoneOffset.UTC).toInstant();
      } else {
        String time = word.replaceFirst("^(\\d{4}-\\d{2}-\\d{2}) ", "$1T");
        boolean hasZone = time.matches(".*(Z|[+-]\\d{2}(:?\\d{2}){0,2})$") && time.indexOf('T') > 0;
        moment = hasZone ? OffsetDateTime.parse(time).toInstant() : LocalDateTime.parse(time).toInstant(ZoneOffset.UTC);
      }
      return ChronoUnit.MICROS.between(Instant.EPOCH, moment);
    } catch (DateTimeException malformed) {
      throw new BadOption(option, word, EXPECTED);
    }
  }
}
