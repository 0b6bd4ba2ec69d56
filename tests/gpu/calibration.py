"""A hardware profile of this machine and engine, from layouts and traffic of its own."""

from __future__ import annotations

import statistics
from pathlib import Path

from placement.errors import BadHardwareProfile
from placement.hardware import HardwareProfile
from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.hardware import write_hardware
from tests.gpu.checkpoints import Checkpoint
from tests.gpu.compare import gather_steps
from tests.gpu.layouts import demand_of, domain_layout, worst
from tests.gpu.measure import push_bare
from tests.gpu.results import Results
from tests.gpu.server import Engine
from tests.gpu.step_prediction import CalibrationPoint, StepShape, fit_profile, step_loads
from tests.gpu.traffic import Traffic, routed_tokens, send


def calibrate(
    engine: Engine,
    client: EngineClient,
    results: Results,
    *,
    model: Checkpoint,
    traffics: list[Traffic],
    shape: StepShape,
    base: HardwareProfile,
    least_steps: int,
    file: Path,
) -> HardwareProfile:
    """Time steps under layouts that differ in copies and in balance, fit a profile and write it.

    The first layout is pushed back. Where the fit has no sense (steps too few, times too noisy) the profile is
    ``base``, and a finding says so.
    """
    start = client.placement()
    sizes = {"gpus": start.ep_size, "experts": start.experts, "slots": start.slots}
    own = start.experts // start.ep_size
    points = []
    for number, traffic in enumerate(traffics):
        routed = routed_tokens(engine, traffic, layers=model.layers, top_k=model.top_k, dense_layers=model.dense_layers)
        demand = demand_of(routed, experts=start.experts, gpus=start.ep_size)
        layouts = {
            f"{kept} of {own} at home": domain_layout(kept, layers=model.layers, **sizes)
            for kept in sorted({0, own // 2, own * 7 // 8, own})
        }
        layouts["hottest together"] = worst(demand, gpus=start.ep_size, slots=start.slots)
        loads = step_loads(layouts, routed, shape)
        for name, layout in layouts.items():
            push_bare(client, layout, dense_layers=model.dense_layers)
            send(engine, traffic)
            times = gather_steps(
                engine,
                lambda traffic=traffic: send(engine, traffic),  # type: ignore[misc]
                repeats=1,
                least_steps=least_steps,
            )
            if not times.moe_ms:
                continue
            experts_s = 1e-3 * statistics.median(times.slowest_experts_ms) / model.layers
            moe_s = 1e-3 * statistics.median(times.moe_ms) / model.layers
            point = CalibrationPoint(loads[name], experts_s, max(1e-9, moe_s - experts_s))
            points.append(point)
            results.add(
                "calibration",
                engine=engine.setup.name,
                traffic=number,
                layout=name,
                steps=times.steps,
                rows=round(point.load.rows),
                copies=round(point.load.copies),
                experts_us=round(1e6 * point.experts_s, 1),
                all_to_all_us=round(1e6 * point.all_to_all_s, 1),
            )
    if client.placement().layout_hash != start.layout_hash:
        push_bare(client, Layout(start.map_LP, gpus=start.ep_size, experts=start.experts))
    try:
        if len(points) < 3:
            raise BadHardwareProfile(f"only {len(points)} layouts were timed; a line needs 3 or more.")
        profile = fit_profile(points, shape, base, name=file.stem)
    except (BadHardwareProfile, ZeroDivisionError) as error:
        results.add("profile", engine=engine.setup.name, name=base.name, error=str(error))
        return base
    write_hardware(profile, file)
    figures = profile.to_dict()
    results.add("profile", engine=engine.setup.name, **{key: figures[key] for key in ("name", "expert", "prefill")})
    return profile
