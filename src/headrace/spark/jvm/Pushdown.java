package headrace.spark;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Filters of a batch query, turned into smaller ranges. For one thread.
 *
 * <p>Filters on `index`, `stream` and `partition` are met exactly and taken off Spark's hands. Filters on `time` and
 * `type` narrow what is read, and Spark checks them again: it costs little and keeps its rules for nulls.
 */
final class Pushdown {
  long low = 0;
  long high = Long.MAX_VALUE;
  long timeLowUs = Long.MIN_VALUE;
  long timeHighUs = Long.MAX_VALUE;
  private Set<Object> streams;
  private Set<Object> partitions;
  private Set<Object> types;

  /** Use a filter; true when Spark need not check it again. */
  boolean take(Predicate filter) {
    Expression[] parts = filter.children();
    String column = parts.length > 0 ? nameOf(parts[0]) : null;
    if (column == null) {
      return false;
    }
    if (filter.name().equals("IS_NOT_NULL")) {
      return column.equals("index");
    }
    Object[] values = new Object[parts.length - 1];
    for (int number = 1; number < parts.length; number++) {
      if (!(parts[number] instanceof Literal<?> literal) || literal.value() == null) {
        return false;  // a null matches rows that no list of values can name: the whole filter is Spark's
      }
      values[number - 1] = literal.value();
    }
    return switch (column) {
      case "index" -> takeIndex(filter.name(), values);
      case "time" -> takeTime(filter.name(), values);
      case "stream" -> isList(filter.name(), values, UTF8String.class) && (streams = kept(streams, values)) != null;
      case "partition" ->
          isList(filter.name(), values, Integer.class) && (partitions = kept(partitions, values)) != null;
      case "type" -> {
        if (isList(filter.name(), values, UTF8String.class)) {
          types = kept(types, values);
        }
        yield false;
      }
      default -> false;
    };
  }

  private static String nameOf(Expression expression) {
    return expression instanceof NamedReference reference && reference.fieldNames().length == 1
        ? reference.fieldNames()[0] : null;
  }

  private boolean takeIndex(String kind, Object[] values) {
    if (values.length != 1 || !(values[0] instanceof Long index)) {
      return false;
    }
    switch (kind) {
      case "=", "<=>" -> {
        low = Math.max(low, index);
        high = Math.min(high, after(index));
      }
      case ">" -> low = Math.max(low, after(index));
      case ">=" -> low = Math.max(low, index);
      case "<" -> high = Math.min(high, index);
      case "<=" -> high = Math.min(high, after(index));
      default -> {
        return false;
      }
    }
    return true;
  }

  private static long after(long value) {
    return value == Long.MAX_VALUE ? value : value + 1;
  }

  private boolean takeTime(String kind, Object[] values) {
    if (values.length == 1 && values[0] instanceof Long time) {
      if (List.of("=", "<=>", ">", ">=").contains(kind)) {
        timeLowUs = Math.max(timeLowUs, time);
      }
      if (List.of("=", "<=>", "<", "<=").contains(kind)) {
        timeHighUs = Math.min(timeHighUs, after(time));  // a record at the bound itself is still read
      }
    }
    return false;
  }

  private static boolean isList(String kind, Object[] values, Class<?> of) {
    boolean isKind = kind.equals("IN") || List.of("=", "<=>").contains(kind) && values.length == 1;
    return isKind && List.of(values).stream().allMatch(of::isInstance);
  }

  private static Set<Object> kept(Set<Object> already, Object[] values) {
    Set<Object> kept = new HashSet<>(List.of(values).stream().distinct().toList());
    if (already != null) {
      kept.retainAll(already);
    }
    return kept;
  }

  boolean wantsStream(String stream) {
    return streams == null || streams.contains(UTF8String.fromString(stream));
  }

  boolean wantsPartition(int partition) {
    return partitions == null || partitions.contains(partition);
  }

  /** The types wanted by filters and by the option `types` together; null for all. */
  List<String> types(List<String> already) {
    if (types == null) {
      return already;
    }
    return types.stream().map(Object::toString)
        .filter(type -> already == null || already.contains(type)).sorted().collect(Collectors.toList());
  }
}
