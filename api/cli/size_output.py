"""Sizes on a terminal."""

from __future__ import annotations

from api.cli.output import TextTable, number, print_line, print_table
from api.time_words import microseconds
from placement.sizing import SizeCurve, SizeRow

GIB = 2**30


def print_size(curve: SizeCurve, *, gpus: int, memory_gib: float) -> None:
    """Print the rows and what they mean for the target."""
    with_tokens = any(row.gpus_per_token is not None for row in curve.rows)
    with_times = any(row.moe_layer is not None for row in curve.rows)
    table = TextTable(
        "slots_per_gpu",
        "weights GiB",
        "cache GiB",
        "cache_tokens",
        "of all ranks",
        "local_gpu",
        "bound",
        "local_node",
        "imbalance",
        *(["gpus_per_token", "active_experts"] if with_tokens else []),
        *(["moe_layer_us"] if with_times else []),
        "",
        title=f"{gpus} GPUs of {memory_gib:g} GiB, {curve.parameters / 1e9:.2f} B parameters, "
        f"memory fraction {curve.memory_fraction:.3f}, {curve.token_bytes:.0f} bytes per cached token",
    )
    for row in curve.rows:
        table.add_row(*_cells(row, curve, with_tokens=with_tokens, with_times=with_times))
    print_table(table)
    for sentence in size_sentences(curve):
        print_line(sentence)


def size_sentences(curve: SizeCurve) -> tuple[str, ...]:
    """Say whether the target fits, what it costs, and what there is instead."""
    return (f"at most {curve.most_slots} slots per GPU fit", *_target(curve), *_fastest(curve))


def _target(curve: SizeCurve) -> tuple[str, ...]:
    target = f"{curve.local_target:.0%} on the own GPU"
    if curve.slots_for_target is None:
        return ("without an all-to-all backend no token is more at home on one GPU than on another",)
    if curve.target_row is not None:
        row, first = curve.target_row, curve.rows[0]
        cost = first.memory.cache_tokens - row.memory.cache_tokens
        return (
            f"{target} is reached with {row.memory.slots_per_gpu} slots per GPU (at least {curve.slots_for_target} are "
            f"needed, proven) for {cost} fewer cached tokens per GPU than with {first.memory.slots_per_gpu}",
        )
    said = [f"{target} cannot be had: it needs at least {curve.slots_for_target} slots per GPU (proven)"]
    if curve.slots_for_target <= curve.most_slots:
        said = [
            f"{target} is not reached by a plan within {curve.most_slots} slots per GPU and the imbalance asked for"
        ]
    best = curve.best_local_row
    if best is not None:
        said.append(
            f"the best own-GPU share that fits is {number(best.local_gpu)} with {best.memory.slots_per_gpu} slots per "
            f"GPU (no layout of these passes {number(best.local_gpu_bound)}); on the own node it is "
            f"{number(best.local_node)}"
        )
    return tuple(said)


def _fastest(curve: SizeCurve) -> tuple[str, ...]:
    timed = [(row.moe_layer.moe_layer_s, row) for row in curve.rows if row.moe_layer is not None]
    if not timed:
        return ()
    seconds, fastest = min(timed, key=lambda each: (each[0], each[1].memory.slots_per_gpu))
    said = (
        f"the fastest of these takes {microseconds(seconds)} us per MoE layer with {fastest.memory.slots_per_gpu} slots"
    )
    target = curve.target_row
    if target is None or target.moe_layer is None or target is fastest:
        return (said,)
    more = target.moe_layer.moe_layer_s / seconds - 1
    pays = f": the target of {curve.local_target:.0%} does not pay here" if more > 0.005 else ""
    return (f"{said}; reaching the target takes {more:.1%} longer{pays}",)


def _cells(row: SizeRow, curve: SizeCurve, *, with_tokens: bool, with_times: bool) -> list[str]:
    memory = row.memory
    cells = [
        str(memory.slots_per_gpu),
        f"{(memory.expert_bytes + memory.other_weight_bytes) / GIB:.1f}",
        f"{memory.cache_bytes / GIB:.1f}",
        str(memory.cache_tokens),
        str(memory.all_cache_tokens),
        number(row.local_gpu),
        number(row.local_gpu_bound),
        number(row.local_node),
        number(row.imbalance),
    ]
    if with_tokens:
        cells += [number(row.gpus_per_token), number(row.active_experts)]
    if with_times:
        cells.append(microseconds(None if row.moe_layer is None else row.moe_layer.moe_layer_s))
    mark = "" if row.fits else "does not fit"
    return [*cells, "reaches the target" if row is curve.target_row else mark]
