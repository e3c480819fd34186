"""Whether models fit into the memory of this machine, planned as a load would plan it."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass

from specllama.cli import console
from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import ResourceError, SpecllamaError
from specllama.gguf.header import Header
from specllama.heads import is_head_file
from specllama.heads.check import check_model
from specllama.models.memory.available import UNKNOWN, available_memory, gpus_present
from specllama.models.memory.load_plan import plan_load
from specllama.models.memory.plan import DeviceMemory, MemoryPlan
from specllama.models.sizes import FILE_SHARE, size
from specllama.pair.head_check import own_head


@dataclass(frozen=True, slots=True)
class Machine:
    """available: bytes of host memory. gpus: those that the build of llama.cpp can use."""

    available: int
    gpus: tuple[DeviceMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model is loaded where only its name is given. plan: None if it does not fit, or has no plan of
    its own; problem, hint: why not, and what would fit.
    """

    plan: MemoryPlan | None = None
    n_layer: int = 0
    n_ctx_train: int = 0
    problem: str = ""
    hint: str = ""

    @property
    def word(self) -> str:
        """For a column: "yes", "8192 tokens" where the context is shortened for it, "no", "" if unknown."""
        if self.plan is None:
            return "no" if self.problem else ""
        return "yes" if not self._shortened else f"{self.plan.n_ctx} tokens"

    @property
    def _shortened(self) -> bool:
        from specllama.config.defaults import N_CTX_DEFAULT

        assert self.plan is not None
        return self.plan.n_ctx < min(self.n_ctx_train or N_CTX_DEFAULT, N_CTX_DEFAULT)

    def sentence(self, machine: Machine) -> str:
        """What it takes and what there is."""
        if self.plan is None:
            return self.problem
        plan = self.plan
        text = f"takes {size(plan.host)} with {plan.n_ctx} tokens of context"
        if plan.device:
            layers = min(plan.target.n_gpu_layers, self.n_layer)
            text += f", and {size(plan.device)} of the GPU for {layers} of {self.n_layer} layers"
        free = f", {size(machine.available)} are free" if machine.available < UNKNOWN else ""
        return f"{text}{free}: it fits"


def this_machine() -> Machine:
    """The memory that is free now. Where there is a GPU, an engine process is asked for its own."""
    gpus: tuple[DeviceMemory, ...] = ()
    if gpus_present():
        from specllama.client.client import EngineClient

        apple = platform.system() == "Darwin"
        with contextlib.suppress(SpecllamaError), EngineClient() as client:
            devices = client.inspect().devices
            gpus = tuple(DeviceMemory(d.name, d.free, apple) for d in devices if d.gpu)
    return Machine(available_memory(), gpus)


def guessed_fit(n_bytes: int | None, machine: Machine) -> str:
    """As `Fit.word`, for a model whose size is guessed by its name: "likely", "no", "" if unknown."""
    if n_bytes is None or machine.available >= UNKNOWN:
        return ""
    room = machine.available + sum(gpu.free for gpu in machine.gpus)
    return "likely" if n_bytes <= FILE_SHARE * room else "no"


def fit(header: Header, machine: Machine) -> Fit:
    """How the model would be loaded, with its own head where that fits too."""
    if is_head_file(header):
        return Fit()
    settings = LoadSettings(target=ModelSettings(path=header.path))
    try:
        check_model(header)
        own = own_head(header)[0]
        for head in (None,) if own is None else (own.head, None):
            with contextlib.suppress(ResourceError):
                plan = plan_load(settings, header, head, machine.available, machine.gpus)
                return Fit(plan, header.n_layer, header.n_ctx_train)
        plan_load(settings, header, None, machine.available, machine.gpus)
    except SpecllamaError as error:
        shown = error.spelled(console.as_flag)
        return Fit(problem=shown.message, hint=shown.hint)
    return Fit()
