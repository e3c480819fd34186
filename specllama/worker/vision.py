"""The projector of a load: checked before the models are loaded, and opened once the target is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specllama.client import protocol
from specllama.client.tune_messages import Loading
from specllama.config.load import LoadSettings
from specllama.errors import SpecllamaError, UsageError, option
from specllama.gguf.header import Header, read_model
from specllama.gguf.projector import Projector, check_fits, read_projector
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import physical_cores
from specllama.worker.images import Encoder

Send = Callable[[protocol.Message], None]


def checked_projector(settings: LoadSettings, target: Header, send: Send) -> Projector | None:
    """The projector of the settings, None without one, and for one that was looked for and cannot be used,
    which a notice says. Raises UsageError, IntegrityError and NotFoundError for one that was named.
    """
    if not settings.projector:
        return None
    try:
        projector = read_projector(read_model(settings.projector), settings.image_max_tokens)
        check_fits(projector, target)
    except SpecllamaError as error:
        _leave_out(settings, error, send)
        return None
    return projector


def open_encoder(
    settings: LoadSettings, projector: Projector | None, model: LlamaModel, send: Send
) -> Encoder | None:
    """The encoder of images, None without a projector, and for one that was looked for and cannot be opened,
    which a notice says. model: the target. Raises what VisionEncoder raises.
    """
    if projector is None:
        return None
    from specllama.llama.vision import VisionEncoder  # loads libmtmd

    t = settings.target
    try:
        encoder = VisionEncoder(
            settings.projector,
            model,
            n_threads=t.n_threads_batch or t.n_threads or physical_cores(),
            use_gpu=settings.mmproj_offload and t.devices != ("none",),
            flash_attn=t.flash_attn,
            min_tokens=settings.image_min_tokens,
            max_tokens=settings.image_max_tokens,
            report=lambda stage, share: send(Loading(stage, share)),
        )
        if encoder.n_most > t.n_ubatch:
            encoder.close()
            problem = f"{settings.projector} needs {encoder.n_most} rows computed at once, not {t.n_ubatch}"
            raise UsageError(problem, f"give {option('n_ubatch', encoder.n_most)}")
    except SpecllamaError as error:
        _leave_out(settings, error, send)
        return None
    return encoder


def without_projector(settings: LoadSettings) -> LoadSettings:
    return replace(settings, mmproj="none", mmproj_found=False)


def _leave_out(settings: LoadSettings, error: SpecllamaError, send: Send) -> None:
    """Note that a projector that was looked for is not used; raise the error of one that was named."""
    if not settings.mmproj_found:
        raise error.prefixed(f"{option('mmproj')}: ") from None
    send(protocol.Notice(f"images are not read: {error.args[0]}"))
