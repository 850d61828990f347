"""Updates in fewer bits: how far off they may be, and that nothing is drawn to either side."""

from __future__ import annotations

import pytest
import torch

from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.client.compression import SCALE, compress, decompress
from fedtailor.client.job import size
from fedtailor.core.types import Params

HOW = ("fp32", "fp16", "int8")
FEW = ("fp16", "int8")


def numbers(seed: int = 0, spread: float = 0.01) -> tuple[Params, Params]:
    """Parameters and where they began: of several shapes, with large values and small changes."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (30, 40), "row": (7,), "alone": (), "one": (1, 1), "none": (0, 4)}
    start = {name: 3 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    return {name: v + spread * torch.randn(v.shape, generator=rng) for name, v in start.items()}, start


def there_and_back(params: Params, start: Params, how: str, seed: int = 0) -> Params:
    return decompress(compress(params, start, how, generator(seed, "rounding")), start, how)


def test_fp32_is_left_alone() -> None:
    """Bit for bit, and nothing is added."""
    params, start = numbers()
    packed = compress(params, start, "fp32", generator(0))
    assert list(packed) == list(params)
    assert all(torch.equal(value, params[name]) for name, value in packed.items())
    assert all(torch.equal(value, params[name]) for name, value in decompress(packed, start, "fp32").items())


@pytest.mark.parametrize("spread", [1e-6, 0.01, 1e3])
def test_fp16_is_as_near_as_the_largest_change_allows(spread: float) -> None:
    """Half a unit in the 11th bit of a change, and the rounding of the sum in fp32."""
    params, start = numbers(1, spread)
    back = there_and_back(params, start, "fp16")
    assert list(back) == list(params)
    for name, value in params.items():
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape)
        if value.numel():
            largest = (value - start[name]).abs().max()
            room = largest * 2**-11 * 1.01 + value.abs().max() * 2**-22
            assert (back[name] - value).abs().max() <= room


@pytest.mark.parametrize("spread", [1e-6, 0.01, 1e3])
def test_int8_is_at_most_one_step_off(spread: float) -> None:
    """A step is a 127th of the tensor's largest change, which itself comes back as it was."""
    params, start = numbers(2, spread)
    packed = compress(params, start, "int8", generator(0, "rounding"))
    back = decompress(packed, start, "int8")
    for name, value in params.items():
        if value.numel():
            change = (value - start[name]).abs()
            assert packed[name + SCALE] == pytest.approx(change.max() / 127)
            room = value.abs().max() * 2**-22
            assert (back[name] - value).abs().max() <= packed[name + SCALE] * 1.0001 + room
            assert (back[name] - value).flatten()[change.argmax()].abs() <= room + change.max() * 1e-5
            assert packed[name].abs().max() == 127


def test_int8_is_right_in_the_mean() -> None:
    """Over many draws, within five standard errors everywhere: positive, negative, near a step and between two."""
    start = {"w": torch.zeros(9)}
    params = {"w": torch.tensor([127.0, 0.1, -0.1, 0.5, -0.5, 63.999, -63.001, 1e-3, -126.7])}  # in steps
    draws = torch.stack([there_and_back(params, start, "int8", seed)["w"] for seed in range(4000)]).double()
    part = params["w"].double() - params["w"].double().floor()
    error = (part * (1 - part) / len(draws)).sqrt()  # of a draw between two whole numbers
    assert ((draws.mean(dim=0) - params["w"].double()).abs() <= 5 * error + 1e-4).all()
    assert (draws.std(dim=0)[1:5] > 0.2).all()  # it is drawn, not rounded


@pytest.mark.parametrize("how", HOW)
def test_no_change_is_exact(how: str) -> None:
    _, start = numbers()
    back = there_and_back({name: value.clone() for name, value in start.items()}, start, how)
    assert all(torch.equal(back[name], start[name]) for name in start)


def test_the_same_draws_give_the_same_bits_and_others_do_not() -> None:
    params, start = numbers()
    first, same, other = (compress(params, start, "int8", generator(seed, "rounding")) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["matrix"], other["matrix"])


@pytest.mark.parametrize("how", FEW)
def test_what_has_no_start_or_is_no_float_goes_whole(how: str) -> None:
    params, start = numbers()
    whole = {"new": torch.randn(5), "count": torch.tensor([1, 2**40]), "mask": torch.tensor([True, False])}
    start |= {"count": torch.tensor([0, 0]), "mask": torch.tensor([False, False])}
    packed = compress({**params, **whole}, start, how, generator(0))
    assert all(torch.equal(packed[name], value) and name + SCALE not in packed for name, value in whole.items())
    back = decompress(packed, start, how)
    assert list(back) == [*params, *whole]
    assert all(torch.equal(back[name], value) for name, value in whole.items())


@pytest.mark.parametrize(("how", "smaller"), [("fp16", 2), ("int8", 4)])
def test_larger_tensors_are_so_much_smaller(how: str, smaller: int) -> None:
    """But for four bytes a tensor."""
    params, start = numbers()
    few = {"matrix": params["matrix"]}
    assert size(compress(few, start, how, generator(0))) == size(few) / smaller + 4


@pytest.mark.parametrize("how", FEW)
def test_double_precision_stays_double(how: str) -> None:
    start = {"w": torch.zeros(3, dtype=torch.float64)}
    back = there_and_back({"w": torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)}, start, how)
    assert back["w"].dtype == torch.float64
    assert (back["w"] - torch.tensor([0.5, -1.0, 0.25])).abs().max() <= 1 / 127 + 1e-6


def test_nothing_that_is_given_is_changed() -> None:
    params, start = numbers()
    before = {name: value.clone() for name, value in params.items()}
    packed = compress(params, start, "int8", generator(0))
    decompress(packed, start, "int8")
    assert all(torch.equal(params[name], before[name]) for name in params)
    assert len(packed) == 2 * len(params)


@pytest.mark.parametrize(
    "wrong",
    [
        {"w": torch.zeros(2, 3)},
        {"w": torch.zeros(2, 3, dtype=torch.int8)},
        {"w": torch.zeros(2, 3, dtype=torch.int8), "w:scale": torch.zeros(1)},
        {"w": torch.zeros(2, 3, dtype=torch.int8), "w:scale": torch.zeros((), dtype=torch.float64)},
        {"w": torch.zeros(2, 3, dtype=torch.int8), "w:scale": torch.tensor(True)},
        {"w": torch.zeros(3, 2, dtype=torch.int8), "w:scale": torch.zeros(())},
        {"w": torch.zeros(3, dtype=torch.int8), "w:scale": torch.zeros(())},
        {"w": torch.zeros(2, 3, dtype=torch.float16), "w:scale": torch.zeros(())},
    ],
)
def test_what_pack_could_not_have_made_is_refused(wrong: Params) -> None:
    with pytest.raises(UserError, match=r"w is not packed as int8 of \(2, 3\)"):
        decompress(wrong, {"w": torch.zeros(2, 3)}, "int8")
