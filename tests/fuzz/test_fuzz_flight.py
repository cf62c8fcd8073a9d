import random

import pytest
from fuzz.fuzz_flight import fuzz
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = [
    b'{"stream":"orders","partition":0,"start":0,"end":5,"limit":1,"columns":["index"],"types":["a",null]}',
    b'{"ranges":[{"stream":"a","start":{"time_us":5}},{"stream":"b","start":"latest","end":"latest"}],"follow":true}',
    b'{"stream":"orders","producer":"p","sequence":18446744073709551615,"acks":"last"}',
    b'{"code":"trimmed","message":"gone","details":{"previous":{"base64":"AA=="}}}',
    b'{"pattern":"*"}',
]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_and_their_mutations(seed):
    fuzz(seed)
    source = random.Random(seed)
    for _ in range(300):
        data = bytearray(seed)
        for _ in range(source.randint(1, 4)):
            data[source.randrange(len(data))] = source.randrange(256)
        fuzz(bytes(data[: source.randint(1, len(data))]))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_anything(data):
    fuzz(data)
