"""Tests use private names of the product only in the cases listed here, so that a module can be rebuilt freely."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from builders import ROOT

PRODUCT = ("testbed", "testbed_agents")
PRIVATE = re.compile(r"_[A-Za-z]\w*")
NOT_OURS = {"_exit", "_replace", "_fields", "_coalescing_manager"}
"""Names of the standard library and of torch."""

LISTED = {
    "conftest.py": {"_has_lists"},
    "containerlab/test_image_leftovers.py": {"_default_base", "_dockerfile"},
    "containerlab/test_trouble.py": {"_render"},
    "contract/fold_contract.py": {"_act"},
    "netns/test_fiberd.py": {"_ask"},
    "netns/test_fiberd_memory.py": {"_BINARY"},
    "netns/test_fold.py": {"_ask"},
    "netns/test_lab_schedule.py": {"_connection"},
    "unit/agents/strategies/test_served_strategies.py": {
        "_changed",
        "_channels",
        "_drop",
        "_greet",
        "_serving",
        "_uplink",
    },
    "unit/agents/test_declared_compute.py": {"_gradients", "_noise_in", "_targets"},
    "unit/agents/test_evaluation.py": {"_inputs", "_targets"},
    "unit/agents/test_messages.py": {
        "_Frame",
        "_GREETING",
        "_MESSAGE",
        "_changed",
        "_drop",
        "_listener",
        "_newest",
        "_serving",
        "_tune",
    },
    "unit/agents/test_quorum_server.py": {"_timers", "_waiting"},
    "unit/agents/test_tcp_info.py": {"_crosses"},
    "unit/agents/test_timed_alone.py": {"_Repeating", "_by_name"},
    "unit/core/validation/test_shipped_libraries.py": {"_GPU", "_entry_points"},
    "unit/core/workload/test_progress_csv.py": {"_rest"},
    "unit/host/drivers/test_containerlab_driver.py": {"_HOSTS", "_SSH"},
    "unit/host/drivers/test_docker_endpoint.py": {"_HOSTS", "_SSH"},
    "unit/host/drivers/test_images.py": {"_dockerfile"},
    "unit/host/emulators/test_fiberd_client.py": {"_BINARY", "_PACKAGE"},
    "unit/host/files/test_catalog.py": {"_check_regular"},
    "unit/host/linux/test_interfaces.py": {"_COUNTERS", "_TCP"},
    "unit/host/linux/test_invocation.py": {"_SUDO_FINDS", "_SYSTEM"},
    "unit/host/test_doctor.py": {"_LOADED", "_MEMORY_PER_HOST_BYTES", "_MODULES", "_cpu_ticks", "_read_cost_s"},
    "unit/host/test_installation.py": {"_PACKAGE", "_externally_managed", "_has_lists"},
    "unit/keeper/test_calibrated_delays.py": {"_supervise"},
    "unit/keeper/test_fold_of_faults.py": {"_events"},
    "unit/keeper/test_heal_all.py": {"_darken", "_ended", "_space", "_worker"},
    "unit/keeper/test_journal_compaction.py": {"_by_owner"},
    "unit/lab/jobs/test_progress_records.py": {"_MOST_LINES"},
    "unit/lab/test_fiber_measurement.py": {"_streams"},
    "unit/lab/validation/test_rank_programs.py": {"_give"},
    "unit/repository/test_host_stalls.py": {"_stalls", "_watch"},
}
"""Private names by file: to inject failures, to put a constant in place of a path of the machine, or to count timers,
connections and buffers, where no public name reaches."""


def private_names(path: Path) -> Iterator[str]:
    """Yield the private names that a file takes from other modules: imported, as attributes, or in a monkeypatch."""
    tree = ast.parse(path.read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PRODUCT:
                names = [alias.name for alias in node.names]
            case ast.Attribute() if ast.unparse(node.value) not in ("self", "cls"):
                names = [node.attr]
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=arguments):
                words = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
                names = [word.rpartition(".")[2] for word in words[:1] if isinstance(word, str)]
        yield from (name for name in names if PRIVATE.fullmatch(name) and name not in {*defined, *own, *NOT_OURS})


def test_private_names_of_the_product_are_used_in_listed_cases_only() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    used = {str(file.relative_to(ROOT / "tests")): set(private_names(file)) for file in files}
    assert {file: names for file, names in used.items() if names} == LISTED
