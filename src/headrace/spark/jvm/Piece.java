package headrace.spark;

import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/** One task's work: a range, and the sealed files that hold some of it. Immutable, so safe for all threads. */
record Piece(Range range, List<Hub.SegmentFile> files) implements InputPartition {}
