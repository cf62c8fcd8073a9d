"""Imported last by the process that hubs and victims are forked from: what each of them would do first is done once."""

import numpy as np
import pyarrow as pa

from headrace.imports import without_pandas
from headrace.log.struct_types import learn_struct_types

with without_pandas():  # as in a hub
    pa.array([0])
    pa.array(np.zeros(1))
learn_struct_types()
