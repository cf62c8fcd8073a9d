package headrace.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Columns of records as Spark reads them, in place: nothing is copied before a row asks for it. Each is for one thread.
 * What they point at stays valid for as long as they live: each holds on to it.
 */
abstract class Column extends ColumnVector {
  Column(DataType type) {
    super(type);
  }

  /** Values of 64 bits, or bytes between offsets, as Arrow lays them out: at `base`, or in mapped memory without it. */
  static final class Stored extends Column {
    private final Object base;
    private final Object keptAlive;
    private final long validity;
    private final long values;
    private final long data;
    private final int nulls;
    private final int start;

    /** `start` is the first row that counts; `nulls` is 0 where `validity` says nothing. */
    Stored(DataType type, Object base, Object keptAlive, long validity, long values, long data, int nulls, int start) {
      super(type);
      this.base = base;
      this.keptAlive = keptAlive;
      this.validity = validity;
      this.values = values;
      this.data = data;
      this.nulls = nulls;
      this.start = start;
    }

    @Override
    public boolean hasNull() {
      return nulls > 0;
    }

    @Override
    public int numNulls() {
      return nulls;
    }

    @Override
    public boolean isNullAt(int row) {
      int at = start + row;
      return nulls > 0 && (Platform.getByte(base, validity + (at >> 3)) >> (at & 7) & 1) == 0;
    }

    @Override
    public long getLong(int row) {
      return Platform.getLong(base, values + 8L * (start + row));
    }

    @Override
    public byte[] getBinary(int row) {
      if (isNullAt(row)) {
        return null;
      }
      long at = values + 4L * (start + row);
      int begin = Platform.getInt(base, at);
      byte[] bytes = new byte[Platform.getInt(base, at + 4) - begin];
      Platform.copyMemory(base, data + begin, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
      return bytes;
    }

    @Override
    public UTF8String getUTF8String(int row) {
      if (isNullAt(row)) {
        return null;
      }
      long at = values + 4L * (start + row);
      int begin = Platform.getInt(base, at);
      return UTF8String.fromAddress(base, data + begin, Platform.getInt(base, at + 4) - begin);
    }

    /** What must not be let go while this column is read. */
    Object keptAlive() {
      return keptAlive;
    }
  }

  /** The same text or number in every row. */
  static final class Same extends Column {
    private final UTF8String text;
    private final int number;

    Same(DataType type, UTF8String text, int number) {
      super(type);
      this.text = text;
      this.number = number;
    }

    @Override
    public boolean hasNull() {
      return false;
    }

    @Override
    public int numNulls() {
      return 0;
    }

    @Override
    public boolean isNullAt(int row) {
      return false;
    }

    @Override
    public int getInt(int row) {
      return number;
    }

    @Override
    public UTF8String getUTF8String(int row) {
      return text;
    }
  }

  /** Some rows of another column. */
  static final class Chosen extends Column {
    private final ColumnVector all;
    private final int[] rows;

    Chosen(ColumnVector all, int[] rows) {
      super(all.dataType());
      this.all = all;
      this.rows = rows;
    }

    @Override
    public boolean hasNull() {
      return all.hasNull();
    }

    @Override
    public int numNulls() {
      int nulls = 0;
      for (int row : rows) {
        nulls += all.isNullAt(row) ? 1 : 0;
      }
      return nulls;
    }

    @Override
    public boolean isNullAt(int row) {
      return all.isNullAt(rows[row]);
    }

    @Override
    public int getInt(int row) {
      return all.getInt(rows[row]);
    }

    @Override
    public long getLong(int row) {
      return all.getLong(rows[row]);
    }

    @Override
    public byte[] getBinary(int row) {
      return all.getBinary(rows[row]);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      return all.getUTF8String(rows[row]);
    }
  }

  @Override
  public void close() {}

  @Override
  public int getInt(int row) {
    throw unsupported();
  }

  @Override
  public long getLong(int row) {
    throw unsupported();
  }

  @Override
  public byte[] getBinary(int row) {
    throw unsupported();
  }

  @Override
  public UTF8String getUTF8String(int row) {
    throw unsupported();
  }

  @Override
  public boolean getBoolean(int row) {
    throw unsupported();
  }

  @Override
  public byte getByte(int row) {
    throw unsupported();
  }

  @Override
  public short getShort(int row) {
    throw unsupported();
  }

  @Override
  public float getFloat(int row) {
    throw unsupported();
  }

  @Override
  public double getDouble(int row) {
    throw unsupported();
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw unsupported();
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw unsupported();
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw unsupported();
  }

  @Override
  public ColumnVector getChild(int number) {
    throw unsupported();
  }

  private UnsupportedOperationException unsupported() {
    return new UnsupportedOperationException("a column of type " + type + " has no such values");
  }
}
