"""The plugin must load in SGLang's environment, where only moeplan itself was installed (``pip install --no-deps``)."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
sys.modules["sglang"] = None  # importing it would raise: at load time the plugin must not need it either
import profiler.plugin
for module in pkgutil.iter_modules(profiler.plugin.__path__):
    importlib.import_module(f"profiler.plugin.{module.name}")
print(" ".join(sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None})))
"""


def test_only_numpy_is_imported_beside_the_standard_library() -> None:
    before = subprocess.check_output([sys.executable, "-c", "import sys; print(' '.join(sys.modules))"], text=True)
    after = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)
    started_with = {name.partition(".")[0] for name in before.split()}
    foreign = set(after.split()) - started_with - set(sys.stdlib_module_names)
    assert foreign == {"numpy", "profiler"}
