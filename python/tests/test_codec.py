"""Python state survives as bytes exactly, and what cannot is refused by name."""

import collections
import math
import random
import struct

import numpy as np
import pytest
import torch
from ckptengine.torch import Unrepresentable, decode, encode


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**70),
        "naïve ~ text",
        0.1,
        5e-324,
        -0.0,
        [1, [2.5, None]],
        {"a": {"b": [1]}},
        {1: "x", (2, 3): "y"},
        {"~": "tuple", "items": [1]},
        (1, (2,)),
        {3, 1},
        frozenset({"a"}),
        b"\x00\xff",
        bytearray(b"abc"),
        1 + 2j,
        math.inf,
        collections.deque([1, 2], maxlen=3),
        collections.Counter({3: 2}),
        collections.OrderedDict([("b", 1), ("a", 2)]),
        torch.bfloat16,
        torch.Size([2, 3]),
        torch.device("cpu"),
        np.float32(0.1),
    ],
    ids=repr,
)
def test_value_is_decoded_with_its_type(value):
    back = decode(encode(value))
    assert back == value and type(back) is type(value)
    assert repr(back) == repr(value)


def test_random_floats_are_decoded_bit_for_bit():
    generator = random.Random(1)
    floats = [struct.unpack("<d", generator.randbytes(8))[0] for _ in range(2000)]
    floats = [x for x in floats if not math.isnan(x)]
    assert [x.hex() for x in decode(encode(floats))] == [x.hex() for x in floats]
    assert math.isnan(decode(encode(math.nan)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float8_e4m3fn, torch.complex128])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)])
def test_tensor_is_decoded(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    back = decode(encode({"x": [tensor]}))["x"][0]
    assert back.dtype == dtype and back.shape == tensor.shape
    assert encode(back) == encode(tensor)


def test_arrays_are_decoded():
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    back = decode(encode(array))
    assert back.dtype == array.dtype and np.array_equal(back, array)


def test_unsupported_object_is_named_by_its_path():
    with pytest.raises(Unrepresentable, match=r"state\['a'\]\[1\] is of type builtins.object"):
        encode({"a": [1, object()]})
    with pytest.raises(Unrepresentable, match="function"):
        encode({"f": lambda: 0})


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_truncated_bytes_are_refused(cut):
    data = encode({"x": torch.arange(4), "y": "text"})
    with pytest.raises(ValueError):
        decode(data[:cut])
