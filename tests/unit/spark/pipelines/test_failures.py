from __future__ import annotations

from headrace.spark.pipelines.failures import exception_name, explain

SPARK_TEXT = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_ERROR] Failed: \
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    process()
  File "/x/mine.py", line 7, in mine
    raise ValueError("no such fruit")
ValueError: no such fruit
 SQLSTATE: 38000
\tat org.apache.spark.A.b(A.scala:1)
\tat org.apache.spark.C.d(C.scala:2)
"""


def test_the_python_error_comes_first() -> None:
    failure = explain(SPARK_TEXT)
    assert failure.headline == "ValueError: no such fruit"
    assert failure.python.startswith("Traceback")
    assert "mine.py" in failure.python
    assert failure.jvm.count("\n") == 1


def test_an_error_of_the_jvm_keeps_its_own_words() -> None:
    failure = explain("[STREAM_FAILED] Query [id = 1] terminated with exception: no space left\n\tat a.B.c(D.java:1)")
    assert failure.headline == "no space left"
    assert failure.python == ""


def test_names() -> None:
    assert exception_name("headrace.spark.errors.DataLoss: indexes 3 to 4") == "DataLoss"
    assert exception_name("ValueError") == "ValueError"


def test_an_error_of_the_java_engine_has_the_name_that_python_gives_it() -> None:
    text = (
        "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Job aborted due to stage failure: Task 0 "
        "in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1): "
        "headrace.spark.HubError: Fenced: producer 'p' is at sequence 9, not at 5. Nothing was stored\n"
        "\tat headrace.spark.Appender.recover(Appender.java:200)\n SQLSTATE: XXKST"
    )
    failure = explain(text)
    assert failure.headline == "Fenced: producer 'p' is at sequence 9, not at 5. Nothing was stored"
    assert exception_name(failure.headline) == "Fenced"
    assert "Appender.java:200" in failure.jvm
