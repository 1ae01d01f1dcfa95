"""The choice of a kernel for the netem tests, and the result if no kernel boots."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import test_in_vm
import vm

PANIC = (125, "Run /init as init process\nKernel panic - not syncing: ptrace set fp regs failed, errno = 14\n")


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, str]]]:
    """Fake boots: status and output by backend. A missing backend cannot be fetched."""
    answers: dict[str, tuple[int, str]] = {}

    def boot(backend: str, *arguments: object) -> tuple[int, str]:
        if backend not in answers:
            raise vm.BootError(f"no packages for {backend}")
        return answers[backend]

    monkeypatch.delenv("TESTBED_NETEM_VM_BACKEND", raising=False)
    monkeypatch.setattr(vm, "boot", boot)
    vm.choose_backend.cache_clear()
    yield answers
    vm.choose_backend.cache_clear()


def test_user_mode_linux_comes_first(boots: dict[str, tuple[int, str]]) -> None:
    boots.update(uml=(0, ""), qemu=(0, ""))
    assert vm.choose_backend() == "uml"


@pytest.mark.parametrize("answers", [{"uml": PANIC, "qemu": (0, "")}, {"qemu": (0, "")}])
def test_qemu_if_user_mode_linux_panics_or_cannot_be_fetched(
    boots: dict[str, tuple[int, str]], answers: dict[str, object]
) -> None:
    boots.update(answers)  # type: ignore[arg-type]
    assert vm.choose_backend() == "qemu"


def test_if_neither_boots_the_error_has_both_consoles(boots: dict[str, tuple[int, str]]) -> None:
    boots.update(uml=PANIC)
    with pytest.raises(vm.BootError, match=r"uml: status 125 .*errno = 14; qemu: no packages for qemu"):
        vm.choose_backend()


def test_the_environment_overrides_the_choice(
    boots: dict[str, tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    boots.update(uml=(0, ""))
    monkeypatch.setenv("TESTBED_NETEM_VM_BACKEND", "qemu")
    assert vm.choose_backend() == "qemu"


def test_a_missing_prerequisite_is_a_skip_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm, "CACHE", Path("/nonexistent"))
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(vm.Unavailable, match="apt-get is missing"):
        vm.fetch("uml")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no kernel with netem: apt-get is missing"):
        test_in_vm.lacks("apt-get is missing")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no kernel with netem: apt-get is missing"):
        test_in_vm.lacks("apt-get is missing")
