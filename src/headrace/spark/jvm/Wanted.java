package headrace.spark;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * What a task hands out: the columns, the types (null for all), and whether a loss ends it. Immutable, so safe for all
 * threads.
 */
record Wanted(Hub hub, StructType schema, List<String> types, boolean failOnDataLoss) implements Serializable {
  /** The stored columns to fetch, in their order: the index always, to see that nothing is missing. */
  List<String> stored() {
    List<String> names = new ArrayList<>(Arrays.asList(schema.fieldNames()));
    names.add("index");
    if (types != null) {
      names.add("type");
    }
    return Frame.COLUMNS.stream().filter(names::contains).toList();
  }

  /** The types as records have them; null for all. */
  Set<UTF8String> typesAsStored() {
    return types == null ? null : new HashSet<>(types.stream().map(UTF8String::fromString).toList());
  }
}
