from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiler.plugin import checksums


class Experts(torch.nn.Module):
    """Three slots with weights, a scale as parameter, a scale as plain attribute, and things that are no expert's."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.num_local_experts = 3
        self.w13_weight = torch.nn.Parameter(torch.randn(3, 4, 5, generator=generator), requires_grad=False)
        self.w13_scale = torch.nn.Parameter(torch.rand(3, 2, generator=generator), requires_grad=False)
        self.register_buffer("w2_weight", torch.randint(-8, 8, (3, 6), dtype=torch.int8, generator=generator))
        self.g1_alphas = torch.rand(3, generator=generator)
        self.expert_map = torch.arange(3)
        self.shared_input_scale = torch.nn.Parameter(torch.rand(3), requires_grad=False)
        self.shared_input_scale._sglang_require_global_experts = True  # type: ignore[attr-defined]
        self.hidden = torch.rand(7)


def test_every_per_expert_tensor_is_covered() -> None:
    sums = checksums.slot_checksums(Experts())
    assert set(sums) == {"w13_weight", "w13_scale", "w2_weight", "g1_alphas"}
    assert all(len(texts) == 3 and len(set(texts)) == 3 for texts in sums.values())
    assert checksums.bytes_per_expert(Experts()) == 4 * 5 * 4 + 2 * 4 + 6 + 4


def test_equal_bytes_have_equal_sums_wherever_they_are() -> None:
    before, after = Experts(), Experts()
    after.w13_weight.data = after.w13_weight.data[[2, 0, 1]].clone()
    old, new = (checksums.slot_checksums(module)["w13_weight"] for module in (before, after))
    assert new == [old[2], old[0], old[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_one_changed_element_changes_its_slot_only(dtype: torch.dtype) -> None:
    module = Experts()
    module.w13_weight.data = (torch.arange(60).reshape(3, 4, 5) % 11).to(dtype)
    old = checksums.slot_checksums(module)["w13_weight"]
    module.w13_weight.data[1, 2, 3] = torch.tensor(1, dtype=dtype)
    new = checksums.slot_checksums(module)["w13_weight"]
    assert [a == b for a, b in zip(old, new, strict=True)] == [True, False, True]


@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=40),
    swap=st.tuples(st.integers(0, 39), st.integers(0, 39)),
)
def test_order_matters(values: list[int], swap: tuple[int, int]) -> None:
    first, second = (index % len(values) for index in swap)
    swapped = list(values)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    module = Experts()
    module.w13_weight = torch.nn.Parameter(torch.tensor([values, swapped, values]).int(), requires_grad=False)
    sums = checksums.slot_checksums(module)["w13_weight"]
    assert sums[0] == sums[2]
    assert (sums[0] == sums[1]) == (values == swapped)


def test_long_rows_are_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Experts()
    module.w13_weight.data = torch.randn(3, 100, generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr(checksums, "_PIECE", 7)
    old = checksums.slot_checksums(module)["w13_weight"]
    module.w13_weight.data[0, [0, 50]] = module.w13_weight.data[0, [50, 0]]
    new = checksums.slot_checksums(module)["w13_weight"]
    assert old[0] != new[0]
    assert old[1:] == new[1:]


def test_tensors_that_the_mover_forgets_are_named() -> None:
    module = Experts()
    moved = [module.w13_weight.data, module.w2_weight]
    assert checksums.unmoved_tensors(module, moved) == ("g1_alphas", "w13_scale")
    assert checksums.unmoved_tensors(module, [*moved, module.w13_scale.data, module.g1_alphas]) == ()
