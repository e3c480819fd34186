"""The build of the wheel, without compiling: what the hook adds, and what it does without a compiler."""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specllama.llama import kernel_build, vision_build
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(
    bool(kernel_build.unsupported()), reason="there are no kernels for this system"
)


class Interface:
    """hatchling's BuildHookInterface, as far as the hook uses it."""

    def __class_getitem__(cls, _: object) -> type[Interface]:
        return cls

    def __init__(self) -> None:
        self.root, self.warnings = str(ROOT), list[str]()
        self.app = SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("SPECLLAMA_LLAMA_CPP_SOURCE", raising=False)
    name = "hatchling.builders.hooks.plugin.interface"
    for i in range(1, 6):
        part = ".".join(name.split(".")[:i])
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    vars(sys.modules[name])["BuildHookInterface"] = Interface
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.KernelsHook()


def test_the_object_is_compiled_into_the_wheel(
    hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"  # writes what it was called with
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho compiled > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.initialize("standard", data)
    ((compiled, place),) = data["force_include"].items()
    assert place == "specllama/llama/native/specllama_kernels.so"
    assert Path(compiled).read_text() == "compiled\n"
    assert (data["pure_python"], data["tag"]) == (False, f"py3-none-linux_{platform.machine()}")
    hook.finalize("standard", data, "")
    assert not Path(compiled).exists()
    assert not hook.warnings


def test_without_a_compiler_the_wheel_is_for_any_system(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    assert data == {"force_include": {}}
    (warning,) = hook.warnings
    assert warning == "the wheel has no compiled kernels: CXX is 'no-such-compiler', which is not on the path"


def test_an_editable_installation_compiles_nothing(hook: Any) -> None:
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("editable", data)
    assert data == {"force_include": {}}


def test_libmtmd_is_in_the_wheel_where_its_source_is_named(
    hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_build, "compile_object", lambda to: to.write_text("kernels"))
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    monkeypatch.setenv("SPECLLAMA_LLAMA_CPP_SOURCE", str(tmp_path))
    hook.initialize("standard", data)
    (warning,) = hook.warnings
    assert warning.startswith("the wheel has no compiled libmtmd: SPECLLAMA_LLAMA_CPP_SOURCE is ")
    hook.finalize("standard", data, "")
    monkeypatch.setattr(vision_build, "compile_object", lambda to: to.write_text("libmtmd"))
    hook.initialize("standard", data)
    assert sorted(Path(place).name for place in data["force_include"].values()) == [
        *("specllama_kernels.so", "specllama_kernels.so", "specllama_vision.so")
    ]
    assert data["pure_python"] is False
    hook.finalize("standard", data, "")
