"""The common part of LLM and AsyncLLM: their arguments, the requests to the engine for a call, the engine
process, started once and ended once, and the tokenizer of its target.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, Literal, Unpack

from specllama.api.outputs import EmbeddingOutput, EmbeddingRequestOutput, PendingCompletion, PendingRequest
from specllama.api.prompts import (
    Message,
    Params,
    Prediction,
    PromptSource,
    conversation,
    n_completions,
    predictions,
    sampling,
    token_ids,
    written,
)
from specllama.calls import history
from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.config.build import ModelName, SpeculativeConfig, settings_of_arguments, speculative
from specllama.config.defaults import DRAFT_MAX, DRAFT_MODEL, DRAFTERS, LAYERS, SERVED_SLOTS
from specllama.config.load import LoadSettings
from specllama.config.load_options import Layers, LoadOptions
from specllama.config.options import as_argument
from specllama.core.sampling.params import PARAMETERS, SamplingParams, nth_seed
from specllama.errors import EngineError, SpecllamaError, UsageError, with_option_names
from specllama.images import MEDIA_MARKER
from specllama.models import prepare
from specllama.models.progress import DownloadState, Listener
from specllama.models.projectors import no_projector
from specllama.models.resolve import Library
from specllama.text.prompt_parts import template_variables

Progress = Callable[[str, float], None]
_log = logging.getLogger("specllama")


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
        named: dict[str, Any] = {"n_slots": max_num_seqs, "draft_max": tokens, "exact": exact}
        named |= {"n_gpu_layers": n_gpu_layers, "drafters": drafters, "chat_template": chat_template}
        settings = settings_of_arguments(model, draft, max_model_len, named, options)
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
            given = PARAMETERS["seed"].checked(values.get("seed"))
            seed = self._seed if given is None else given
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

    def _embed(
        self, texts: Sequence[PromptSource], dimensions: int | None, truncate: bool, normalize: bool
    ) -> list[EmbeddingRequestOutput]:
        """See LLM.embed. Raises UsageError, ContextLengthError, EngineError."""
        if not texts:
            return []
        if any(one.images for one in texts):
            raise UsageError("an embedding model reads text only, and a prompt has images")
        given = [list(one.ids) if one.ids is not None else one.text or "" for one in texts]
        if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
            raise UsageError(f"dimensions must be a whole number from 1, not {dimensions!r}")
        norm, n_values, client = 2 if normalize else -1, dimensions or 0, self._engine.client()
        order = protocol.Embed(client.next_id(), given, norm=norm, n_values=n_values, truncate=truncate)
        return [
            EmbeddingRequestOutput(
                str(next(self._numbers)), text.text, text.ids, EmbeddingOutput(one.numbers()[0]), one.n_tokens
            )
            for text, one in zip(texts, client.embed(order), strict=True)
        ]


class EngineSession:
    """Finds models on disk at construction; `load` downloads the others. Any thread may call `load`, and
    close at any time. Notes for the user go to the logger "specllama".

    settings: models may be names. info: what the engine has loaded; empty before that. Raises UsageError,
    NotFoundError, ConfigError.
    """

    def __init__(self, settings: LoadSettings, log: IO[str] | None, progress: Progress | None) -> None:
        try:
            on_disk = prepare.prepare_if_on_disk(Library(_Logged(None)), settings)
        except SpecllamaError as error:
            raise error.with_option_names(as_argument) from None
        self.info: Mapping[str, Any] = {}
        self._loaded: LoadInfo | None = None
        self.settings, self._complete = on_disk or settings, on_disk is not None
        self._engine_log, self._progress = log, progress
        self._client: EngineClient | None = None
        self._closed = False

    def load(self) -> None:
        """Download models that are not on disk, start the process and load them; end it again if that fails.

        Raises what prepare.prepare and EngineClient.load raise.
        """
        try:
            if not self._complete:
                self.settings = prepare.prepare(Library(_Logged(self._progress)), self.settings)
                self._complete = True
        except SpecllamaError as error:
            raise error.with_option_names(as_argument) from None
        client = self._client = EngineClient(self._engine_log, _log.warning, option_names=as_argument)
        try:
            self.client()  # it may have been closed meanwhile
            info = client.load(
                self.settings,
                self._progress,
                self._engine_log is not None,
                measure_when_idle=True,
                may_embed=True,
            )
        except SpecllamaError as error:
            client.close()
            raise error.with_option_names(as_argument) from None
        except BaseException:
            client.close()
            raise
        self._loaded = info
        self.info = info.to_dict()
        for note in info.notes:
            _log.log(logging.WARNING if note.severity == "warning" else logging.INFO, "%s", note.message)

    def answer_reader(self, tools: Tools | None) -> CallReader | None:
        """See LoadInfo.answer_reader; of the loaded model."""
        assert self._loaded is not None
        return self._loaded.answer_reader(tools)

    def image_problem(self) -> SpecllamaError | None:
        """The error for images where the loaded model reads text only."""
        assert self._loaded is not None
        if self._loaded.vision:
            return None
        return no_projector(Library(_Logged(None)), self._loaded.target.path).with_option_names(as_argument)

    def client(self) -> EngineClient:
        """The client of the running process, for a call. Raises EngineError after a close."""
        if self._closed or self._client is None:
            raise EngineError("this LLM is closed", "make a new one")
        return self._client

    def shut(self) -> None:
        """End the process without waiting for it; for finalizers."""
        self._closed = True
        if self._client is not None:
            self._client.shut()

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._closed = True
        if self._client is not None:
            self._client.close()


class _Logged(Listener):
    """Notes go to the logger "specllama", shares to `progress`."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def note(self, text: str) -> None:
        _log.info("%s", with_option_names(text, as_argument))

    def warning(self, text: str) -> None:
        _log.warning("%s", with_option_names(text, as_argument))

    def state(self, state: DownloadState) -> None:
        if self._progress is not None:
            self._progress("download", state.done / state.total if state.total else 1.0)


class Tokenizer:
    """From texts to token ids and back. Its methods wait for the engine; threads may share one.

    bos_token, eos_token: their texts, "" where the vocabulary has none. end_ids: all tokens that end a text.
    """

    def __init__(self, engine: EngineSession) -> None:
        self._engine, info = engine, engine.info
        self.vocab_size: int = info["n_vocab"]
        self.bos_token: str = info["bos_token"]
        self.eos_token: str = info["eos_token"]
        self.end_ids: Sequence[int] = tuple(info["end_ids"])

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id(self.eos_token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; control tokens that it names are parsed. add_special_tokens: with the beginning
        of a text, where the model has one. Raises UsageError.
        """
        if not isinstance(text, str):
            raise UsageError(f"encode takes a text, not {type(text).__name__}")
        parts = self._ask(protocol.Tokenize(-1, text, add_special_tokens))
        return [i for part in parts for i in part.ids]

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids. Raises UsageError."""
        ids = token_ids([ids] if isinstance(ids, int) else ids) if isinstance(ids, int) or len(ids) else ()
        parts = self._ask(protocol.Detokenize(-1, list(ids), skip_special_tokens))
        return "".join(part.text for part in parts)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """Messages and the beginning of their answer, through the chat template: ids, or a text with
        tokenize=False. add_generation_prompt: must be True, since the text always ends with that beginning;
        False is the default of Transformers' method. variables: of the template. Raises UsageError and
        TemplateError.
        """
        if not add_generation_prompt:
            raise UsageError("messages end with the beginning of an answer", "add add_generation_prompt=True")
        source = conversation(messages)
        given = written(source.messages or [], dict.fromkeys(source.images, MEDIA_MARKER))
        chat = protocol.ChatInput(given, template_variables(variables), history.tools(tools))
        parts = self._ask(protocol.Render(-1, chat))
        text = "".join(part.text for part in parts)
        return self.encode(text, False) if tokenize else text

    def _id(self, text: str) -> int | None:
        ids = self.encode(text, False)
        return ids[0] if len(ids) == 1 else None

    def _ask(self, question: protocol.Tokenize | protocol.Detokenize | protocol.Render) -> list[Any]:
        client = self._engine.client()
        return client.ask(replace(question, id=client.next_id()))
