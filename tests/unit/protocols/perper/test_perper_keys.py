"""The map from keys to indexes, against a plain dict."""

from __future__ import annotations

import time
from array import array

from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.perper import keys as keys_module
from headrace.protocols.perper.keys import KeyIndex

KEYS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 40)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "remove", "drop", "trim", "clear"]), KEYS), max_size=60
)


@given(STEPS, st.integers(0, 3), st.integers(0, 3))
def test_behaves_as_a_sorted_dict(steps: list[tuple[str, int]], late_min: int, few: int) -> None:
    index, model, next_index = KeyIndex(), {}, 0
    before = keys_module.LATE_MIN, keys_module.FEW
    keys_module.LATE_MIN, keys_module.FEW = late_min, few
    try:
        for step, key in steps:
            if step == "put":
                index.put(key, next_index)
                model[key] = next_index
                next_index += 1
            elif step == "remove":
                assert index.remove(key) == (model.pop(key, None) is not None)
            elif step == "drop":
                assert index.drop_below(key) == sum(one < key for one in model)
                model = {one: at for one, at in model.items() if one >= key}
            elif step == "trim":
                bound = next_index // 2
                assert index.drop_indexes_below(bound) == sum(at < bound for at in model.values())
                model = {one: at for one, at in model.items() if at >= bound}
            else:
                index.clear()
                model.clear()
            check(index, model, key)
    finally:
        keys_module.LATE_MIN, keys_module.FEW = before


def check(index: KeyIndex, model: dict[int, int], key: int) -> None:
    ordered = sorted(model)
    assert len(index) == len(model)
    assert index.get(key) == model.get(key)
    assert (key in index) == (key in model)
    assert index.first() == (ordered[0] if ordered else None)
    assert index.last() == (ordered[-1] if ordered else None)
    assert list(index) == [(one, model[one]) for one in ordered]
    assert index.above(key, 3) == [one for one in ordered if one > key][:3]
    assert index.above(None, 100, 2) == [one for one in ordered if model[one] >= 2][:100]
    assert index.above(None, 1, 2) == [one for one in ordered if model[one] >= 2][:1]
    rest = [model[one] for one in ordered if one >= key]
    assert index.oldest_index_from(key) == (min(rest) if rest else None)
    for stride in (1, 2, -1, -3):
        expected = []
        at = key
        while at in model and len(expected) < 4:
            expected.append(at)
            at += stride
        assert index.run(key, stride, 4) == expected


def test_extend_appends_in_bulk() -> None:
    index = KeyIndex()
    index.put(1, 0)
    index.extend(array("q", [5, 9]), array("q", [1, 2]))
    assert list(index) == [(1, 0), (5, 1), (9, 2)]


def test_sixteen_bytes_an_item() -> None:
    index = KeyIndex()
    for key in range(10_000):
        index.put(key, key)
    assert index._keys.buffer_info()[1] == 10_000
    assert not index._late


def test_late_keys_are_merged_when_they_are_many() -> None:
    index = KeyIndex()
    for key in range(20_000, 0, -1):
        index.put(key, 20_000 - key)
    assert len(index._late) <= max(keys_module.LATE_MIN, len(index._keys) // 8) + 1
    assert index.above(None, 3) == [1, 2, 3]
    index.put(20_001, 1)  # a late one that is above the largest merged one
    assert index.last() == 20_001


def test_a_late_key_costs_a_listener_little_however_many_there_are() -> None:
    index = KeyIndex()
    count = 300_000
    began = time.process_time()
    index.extend(array("q", range(0, 10 * count, 10)), array("q", range(count)))
    assert len(sorted(index._keys)) == count
    once = time.process_time() - began
    began = time.process_time()
    for late in range(10):
        index.put(10 * count - 15 - 10 * late, count + late)
        assert index.above(10 * count - 20, 1) == [10 * count - 15]
    for position in range(50):
        assert index.oldest_index_from(position * 10) == position
    assert time.process_time() - began < 10 * once  # sorting all of them each time took 60 times that


def test_a_late_key_above_all_others_is_found_once() -> None:
    index = KeyIndex()
    index.put(10, 0)
    index.put(5, 1)
    index.remove(10)
    index.put(5, 2)
    index.put(7, 3)
    assert list(index) == [(5, 2), (7, 3)]
