"""Services and workers never solve themselves (``api.jobs.tasks`` does): they start without what only solving needs."""

from __future__ import annotations

import subprocess
import sys

SOLVING_ONLY = ("pandas", "ortools.sat.python.cp_model", "ortools.linear_solver.pywraplp", "torch", "ray")


def test_a_service_and_a_worker_load_no_models_of_or_tools() -> None:
    program = f"import sys, api.http.app, api.jobs.worker; print([n for n in {SOLVING_ONLY} if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_task_that_solves_loads_them() -> None:
    program = "import sys; from placement.solver import solve; print('ortools.sat.python.cp_model' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"
