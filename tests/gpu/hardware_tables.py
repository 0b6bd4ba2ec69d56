"""What was found of the hardware and of sizes, as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from tests.gpu.markdown import Finding, markdown, of_kind


def hardware(found: Sequence[Finding]) -> str:
    """What ``moeplan calibrate`` measured, and its experts' times beside points it was not fitted on."""
    lines = []
    for one in of_kind(found, "hardware"):
        if "refused" in one:
            continue
        expert, prefill, decode = one["expert"], one["prefill"], one["decode"]
        handled, weights = prefill["handled_bytes_per_s"] / 1e9, expert["weight_bytes_per_s"] / 1e12
        lines.append(
            f"`moeplan calibrate` took {one['took_s']} s on {one['gpus']} x {one['gpu']} ({one['memory_gib']} GiB): "
            f"{expert['flops_per_s']['bf16'] / 1e12:.0f} TFLOPS in bf16, {weights:.2f} TB/s "
            f"of weights, {1e6 * expert['fixed_s']:.1f} us fixed, overlap {expert['overlap']:.2f} (fit: median error "
            f"{100 * one['fit_median']:.1f} %, worst {100 * one['fit_worst']:.1f} %); handling {handled:.0f} GB/s, "
            f"all-to-all {prefill['nvlink_bytes_per_s'] / 1e9:.0f} GB/s, {1e6 * prefill['fixed_s']:.0f} us fixed "
            f"(decode {1e6 * decode['fixed_s']:.0f} us).\n"
        )
    kernels = ("grouped", "sglang", "sglang_graph")
    rows = [
        (
            one["rows"],
            one["active_experts"],
            one["predicted_us"],
            *(f"{one[f'{kernel}_us']} ({100 * one[f'{kernel}_error']:+.1f} %)" for kernel in kernels),
        )
        for one in of_kind(found, "expert time")
    ]
    head = (
        "rows",
        "active experts",
        "predicted us",
        "grouped products",
        "SGLang's kernels",
        "the same in a CUDA graph",
    )
    lines += [markdown(head, rows)] if rows else []
    lines += [
        "Error of the prediction, median / worst: "
        + "; ".join(
            f"{kernel} {100 * one[f'{kernel}_median']:.1f} / {100 * one[f'{kernel}_worst']:.1f} %" for kernel in kernels
        )
        + ".\n"
        for one in of_kind(found, "expert times")
    ]
    return "\n".join(lines)


def sizes(found: Sequence[Finding]) -> str:
    """Tokens in the cache, as engines report and ``moeplan size`` predicts them."""
    rows = [
        (
            one["engine"],
            one["model"],
            one["slots_per_gpu"],
            one["fraction"],
            one["free_gib"],
            f"{one['predicted_weights_gib']} / {one['weights_gib']}",
            f"{one['predicted_tokens']} / {one['tokens']}",
            f"{100 * one['relative_error']:+.2f} %",
        )
        for one in of_kind(found, "cache size")
    ]
    head = ("engine", "model", "slots per GPU", "fraction", "free GiB", "weights GiB", "cached tokens", "error")
    return f"{markdown(head, rows)}\nPredicted / reported.\n" if rows else ""
