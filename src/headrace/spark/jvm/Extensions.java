package headrace.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeLike;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * `spark.sql.extensions=headrace.spark.Extensions`: looks at each real-time plan that ends in our sink and tells the
 * sink what it saw. It changes no plan. Without state, so safe for all threads.
 */
public final class Extensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  /** Operators through which a record passes before the next one is asked for. */
  private static final Set<String> ONE_BY_ONE = Set.of("ProjectExec", "FilterExec", "GenerateExec", "ExpandExec",
      "WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec", "CollectMetricsExec", "EventTimeWatermarkExec",
      "BroadcastHashJoinExec", "BroadcastExchangeExec", "WriteToDataSourceV2Exec", "RealTimeStreamScanExec");

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectColumnar(new AbstractFunction1<SparkSession, ColumnarRule>() {
      @Override
      public ColumnarRule apply(SparkSession session) {
        return new Look();
      }
    });
    return BoxedUnit.UNIT;
  }

  private static final class Look extends ColumnarRule {
    @Override
    public Rule<SparkPlan> postColumnarTransitions() {
      return new Check();
    }
  }

  private static final class Check extends Rule<SparkPlan> {
    @Override
    public SparkPlan apply(SparkPlan plan) {
      if (plan instanceof WriteToDataSourceV2Exec write && write.batchWrite() instanceof MicroBatchWrite batch
          && batch.writeSupport() instanceof StreamSink sink) {
        Seen seen = new Seen();
        seen.walk(plan, false);
        if (seen.sources > 0) {
          sink.plan(new Plan(seen.sources, seen.holding, seen.hasState, seen.tasks, seen.starts));
        }
      }
      return plan;
    }
  }

  /** What a walk through a plan has seen so far. For one thread. */
  private static final class Seen {
    private final List<String> holding = new ArrayList<>();
    private final List<Ranges> starts = new ArrayList<>();
    private int sources;
    private int tasks;
    private boolean hasState;

    /** A static side that is broadcast is computed before any record comes: what stands in it holds nothing back. */
    void walk(SparkPlan plan, boolean isBroadcast) {
      String name = plan.getClass().getSimpleName();
      if (plan instanceof RealTimeStreamScanExec scan) {
        sources++;
        tasks += scan.inputPartitions().size();
        if (scan.stream() instanceof StreamScan own) {
          starts.addAll(own.starts());
        }
      } else if (plan instanceof ShuffleExchangeLike exchange && !isBroadcast) {
        tasks += exchange.numPartitions();
      }
      hasState |= isStateful(plan.getClass());
      if (!isBroadcast && !ONE_BY_ONE.contains(name)) {
        holding.add(name);
      }
      for (SparkPlan child : CollectionConverters.asJava(plan.children())) {
        walk(child, isBroadcast || name.equals("BroadcastExchangeExec"));
      }
    }

    /** By name: the package of Spark's own trait differs between versions. */
    private static boolean isStateful(Class<?> kind) {
      if (kind == null) {
        return false;
      }
      for (Class<?> trait : kind.getInterfaces()) {
        if (trait.getSimpleName().equals("StatefulOperator") || isStateful(trait)) {
          return true;
        }
      }
      return isStateful(kind.getSuperclass());
    }
  }
}
