"""Exported layouts: what the engine's own start reads, whole or not at all."""

from __future__ import annotations

import ast
import inspect
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import LayoutMismatch
from placement.layout import Layout
from placement.model_shape import ModelShape
from profiler.errors import ExportFormatUnknown, ExportNameInvalid, OutputNotWritable
from profiler.formats import EXPORTERS, export_layout, read_layout

LAYOUT = Layout(np.array([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2]]), gpus=2, experts=4)


def test_sglang_gets_one_key_a_row_per_layer_and_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    export_layout(LAYOUT, format="sglang", out=path, model=ModelShape(layers=2, experts=4, top_k=1, moe_layers=(0, 1)))
    document = json.loads(path.read_text())
    assert list(document) == ["physical_to_logical_map"]
    assert document["physical_to_logical_map"] == LAYOUT.slot_to_expert_LP.tolist()
    assert all(type(entry) is int for row in document["physical_to_logical_map"] for entry in row)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    gpus, per_gpu, layers = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    experts = draw(st.integers(1, gpus * per_gpu))
    free = gpus * per_gpu - experts
    rows = []
    for _ in range(layers):
        more = draw(st.lists(st.integers(0, experts - 1), min_size=free, max_size=free))
        rows.append(draw(st.permutations([*range(experts), *more])))
    return Layout(np.array(rows), gpus=gpus, experts=experts)


@settings(deadline=None)
@given(layouts())
def test_every_layout_comes_back(tmp_path_factory: pytest.TempPathFactory, layout: Layout) -> None:
    path = tmp_path_factory.getbasetemp() / "layout.json"
    export_layout(layout, format="sglang", out=path)
    again, _ = read_layout(path, gpus=layout.gpus, experts=layout.experts, layers=layout.layers, slots=layout.slots)
    assert again == layout
    assert again.hash == layout.hash


@pytest.mark.parametrize("format", ["tgi", "SGLang", ""])
def test_an_unknown_format_names_those_that_exist(tmp_path: Path, format: str) -> None:
    with pytest.raises(ExportFormatUnknown) as caught:
        export_layout(LAYOUT, format=format, out=tmp_path / "layout.json")
    assert all(name in caught.value.detail for name in EXPORTERS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["layout", "layout.pt", "layout.JSON", "layout.json.gz"])
def test_a_name_the_engine_would_take_for_something_else_is_refused(tmp_path: Path, name: str) -> None:
    """SGLang takes a value that does not end in .json for JSON itself, and one that ends in .pt for a torch file."""
    with pytest.raises(ExportNameInvalid, match=r"ends in \.json"):
        export_layout(LAYOUT, format="sglang", out=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layers", [1, 3])
def test_rows_for_all_decoder_layers_are_needed(tmp_path: Path, layers: int) -> None:
    model = ModelShape(layers=layers, experts=4, top_k=1, moe_layers=(0,))
    with pytest.raises(LayoutMismatch, match=f"2 rows, the model {layers} decoder layers"):
        export_layout(LAYOUT, format="sglang", out=tmp_path / "layout.json", model=model)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(OutputNotWritable):
        export_layout(LAYOUT, format="sglang", out=tmp_path / "absent" / "layout.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OutputNotWritable):
        export_layout(LAYOUT, format="sglang", out=tmp_path / "folder.json")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def _engine_functions() -> dict[str, ast.FunctionDef]:
    """Functions of the engine's expert_location.py, from an unpacked SGLang wheel."""
    folder = os.environ.get("MOEPLAN_SGLANG_WHEEL")
    if not folder:
        pytest.skip("MOEPLAN_SGLANG_WHEEL is not set: give the folder of an unpacked SGLang wheel to test against it")
    source = (Path(folder) / "sglang/srt/eplb/expert_location.py").read_text(encoding="utf-8")
    return {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}


def test_the_engines_own_start_takes_the_exported_file(tmp_path: Path) -> None:
    """Run SGLang's ``compute_initial_expert_location_metadata`` itself on the file; only its target is replaced.

    The stand-in for ``init_by_mapping`` has the parameters that the engine's own has, so a further key is refused
    here exactly where it stops an engine.
    """
    functions = _engine_functions()
    mapping = functions["init_by_mapping"]
    path = tmp_path / "layout.json"
    export_layout(LAYOUT, format="sglang", out=path)

    assert _run_start(functions, mapping, path)["physical_to_logical_map"] == LAYOUT.slot_to_expert_LP.tolist()

    path.write_text(json.dumps({**json.loads(path.read_text()), "meta": 1}))
    with pytest.raises(TypeError, match="meta"):
        _run_start(functions, mapping, path)


def _run_start(functions: dict[str, ast.FunctionDef], mapping: ast.FunctionDef, path: Path) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    names = [argument.arg for argument in mapping.args.args]
    defaults = len(mapping.args.defaults)
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=None if index >= len(names) - defaults else inspect.Parameter.empty,
            )
            for index, name in enumerate(names)
        ]
    )

    class Metadata:
        @staticmethod
        def init_by_mapping(*args: Any, **kwargs: Any) -> None:
            taken.update(signature.bind(*args, **kwargs).arguments)

    class Options:
        init_expert_location = str(path)
        moe: Any

    Options.moe = Options
    start = functions["compute_initial_expert_location_metadata"]
    for argument in start.args.args:
        argument.annotation = None
    start.returns = None
    module = ast.fix_missing_locations(ast.Module(body=[start], type_ignores=[]))
    scope: dict[str, Any] = {
        "json": json,
        "Path": Path,
        "logger": type("Log", (), {"info": staticmethod(lambda *_: None)}),
        "ExpertLocationMetadata": Metadata,
        "get_exec": lambda: Options,
    }
    exec(compile(module, "expert_location.py", "exec"), scope)
    arguments = [argument.arg for argument in start.args.args]
    scope[start.name](**{name: Options if name == "server_args" else 0 for name in arguments})
    return taken
