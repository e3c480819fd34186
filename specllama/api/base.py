"""The common part of LLM and AsyncLLM: their arguments, and the requests to the engine for a call."""

from __future__ import annotations

import itertools
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, Literal, Unpack

from specllama.api.outputs import PendingCompletion, PendingRequest
from specllama.api.prompts import Params, Prediction, PromptSource, n_completions, predictions, sampling
from specllama.api.session import EngineSession, Progress
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.config.build import ModelName, SpeculativeConfig, settings_of_arguments, speculative
from specllama.config.defaults import DRAFT_MAX, DRAFT_MODEL, DRAFTERS, LAYERS, SERVED_SLOTS
from specllama.config.load_options import Layers, LoadOptions
from specllama.core.sampling.params import SamplingParams, nth_seed
from specllama.errors import UsageError


class BaseLLM(ABC):
    """A loaded pair of models, seen from Python."""

    def __init__(
        self,
        model: ModelName | None = None,
        speculative_model: ModelName | None = DRAFT_MODEL,
        num_speculative_tokens: int | Literal["auto"] = DRAFT_MAX,
        *,
        speculative_config: SpeculativeConfig | None = None,
        max_num_seqs: int = SERVED_SLOTS,
        max_model_len: int | None = None,
        n_gpu_layers: Layers = LAYERS,
        drafters: Sequence[str] | str = DRAFTERS,
        chat_template: str | None = None,
        exact: bool = False,
        seed: int | None = None,
        log: IO[str] | None = None,
        progress: Progress | None = None,
        **options: Unpack[LoadOptions],
    ) -> None:
        """Load a pair of models, downloading what is not on disk once the headers show that the two fit.

        model: the target: path of a GGUF file, a name ("8B", see specllama models), "user/repo:Q4_K_M"; None
        for the demo model if it is on disk, else for the embedded pair. speculative_model: the draft, named
        the same way; None for no draft; "auto" for the known draft of the model, if it is on disk.
        num_speculative_tokens: most draft tokens per round; "auto" decides by measured cost, 0 for no drafts.
        speculative_config: vLLM's dict of these two instead.

        max_num_seqs: texts written at once; further ones wait. max_model_len: tokens of a prompt and its text
        together; one cache of that many tokens is shared by all texts written at once. n_gpu_layers: a
        number, "auto" for all that fit, "all". drafters: which of "model", "copy" and "grammar" draft; () for
        none. chat_template: a Jinja template instead of the model's own. exact: the same text with and
        without drafts on every device, at a cost. seed: for requests without one; None draws one for each.
        log: where llama.cpp's log goes. progress: called with "download", "target" or "draft" and the share
        that is done; by AsyncLLM in another thread. options: see LoadOptions.

        The command's configuration files and environment variables are not read. Raises UsageError,
        NotFoundError, and what downloading and loading raise: AccessError, NetworkError, IntegrityError,
        IncompatiblePairError, ResourceError, EngineError.
        """
        draft, tokens = speculative(speculative_config, speculative_model, num_speculative_tokens)
        settings = settings_of_arguments(
            model,
            draft,
            tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            n_gpu_layers=n_gpu_layers,
            drafters=drafters,
            chat_template=chat_template,
            exact=exact,
            options=options,
        )
        self._seed = SamplingParams(seed=seed).seed
        self._numbers = itertools.count()
        self._engine = EngineSession(settings, log, progress)
        self._end = weakref.finalize(self, self._engine.shut)
        self._start()

    @property
    def info(self) -> Mapping[str, Any]:
        """The loaded models: target, draft, verdict on the pair, n_ctx, drafters, notes …; empty at first."""
        return self._engine.info

    @abstractmethod
    def _start(self) -> None:
        """Start loading."""

    def _requests(
        self,
        sources: Sequence[PromptSource],
        params: Params | Sequence[Params] | None,
        n: int | None,
        speculate: bool,
        variables: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        tools: Tools | None = None,
        prediction: Prediction = None,
    ) -> list[PendingRequest]:
        """One request for each prompt, checked as far as possible without the models. Raises UsageError."""
        if not isinstance(speculate, bool):
            raise UsageError(f"speculate must be true or false, not {speculate!r}")
        if not isinstance(request_id, str | None):
            raise UsageError(f"request_id must be a text, not {request_id!r}")
        settings, predicted = sampling(params, len(sources)), predictions(prediction, len(sources))
        made = []
        for source, values, text in zip(sources, settings, predicted, strict=True):
            seed = self._seed if values.get("seed") in (None, -1) else values["seed"]
            count = n_completions(n, values)
            if seed is None and count > 1:
                seed = secrets.randbits(32)
            prompt = source.prompt_input(variables or {}, tools)
            seeds = [None if seed is None else nth_seed(seed, i) for i in range(count)]
            request = protocol.Generate(-1, prompt, speculate=speculate, prediction=text)
            asked = [replace(request, params={**values, "n": 1, "seed": one}) for one in seeds]
            reader = self._engine.answer_reader
            completions = [PendingCompletion(i, one, reader) for i, one in enumerate(asked)]
            id_ = str(next(self._numbers)) if request_id is None else request_id
            made.append(PendingRequest(id_, source, completions))
        return made
