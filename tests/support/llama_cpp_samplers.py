"""llama.cpp's own samplers on a row of logits, as `common_sampler_init` puts them together."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from specllama.core.sampling.params import SamplingParams
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel

SEED = 1
_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class LlamaCppChain:
    """The chain of some parameters. It chooses nothing, except with Mirostat and adaptive-p, by a seed of its
    own.
    """

    def __init__(self, model: LlamaModel, params: SamplingParams) -> None:
        self.model, self.n_vocab = model, model.n_vocab
        self.stateful = params.mirostat > 0 or "adaptive_p" in params.samplers
        self.chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for sampler in self._samplers(params):
            llama.llama_sampler_chain_add(self.chain, sampler)

    def _samplers(self, p: SamplingParams) -> list[object]:
        if p.logit_bias:
            biases = (llama.llama_logit_bias * len(p.logit_bias))(*p.logit_bias.items())
            yield llama.llama_sampler_init_logit_bias(self.n_vocab, len(biases), biases)
        if p.mirostat:
            yield llama.llama_sampler_init_temp(p.temperature)
            tau, eta = p.mirostat_tau, p.mirostat_eta
            if p.mirostat == 1:
                yield llama.llama_sampler_init_mirostat(self.n_vocab, SEED, tau, eta, 100)
            else:
                yield llama.llama_sampler_init_mirostat_v2(SEED, tau, eta)
            return
        for step in p.samplers:
            if step != "adaptive_p":
                yield self._step(p, step)
        if "adaptive_p" in p.samplers:
            yield llama.llama_sampler_init_adaptive_p(p.adaptive_target, p.adaptive_decay, SEED)

    def _step(self, p: SamplingParams, step: str) -> object:
        keep = p.min_keep
        if step == "penalties":
            last = 4096 if p.repeat_last_n < 0 else p.repeat_last_n
            penalties = p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            return llama.llama_sampler_init_penalties(self.n_vocab, last, *penalties)
        if step == "dry":
            texts = [text.encode() for text in p.dry_sequence_breakers]
            breakers = (ctypes.c_char_p * len(texts))(*texts)
            last = 4096 if p.dry_penalty_last_n < 0 else p.dry_penalty_last_n
            numbers = p.dry_multiplier, p.dry_base, p.dry_allowed_length, last
            return llama.llama_sampler_init_dry(self.model.vocab, *numbers, breakers, len(texts))
        return {
            "top_n_sigma": lambda: llama.llama_sampler_init_top_n_sigma(p.top_n_sigma),
            "top_k": lambda: llama.llama_sampler_init_top_k(p.top_k),
            "typ_p": lambda: llama.llama_sampler_init_typical(p.typical_p, keep),
            "top_p": lambda: llama.llama_sampler_init_top_p(p.top_p, keep),
            "min_p": lambda: llama.llama_sampler_init_min_p(p.min_p, keep),
            "xtc": lambda: llama.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, keep, SEED),
            "temperature": lambda: llama.llama_sampler_init_temp_ext(
                p.temperature, p.dynatemp_range, p.dynatemp_exponent
            ),
            "infill": lambda: llama.llama_sampler_init_infill(self.model.vocab),
        }[step]()

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            llama.llama_sampler_accept(self.chain, int(token))

    def apply(self, row: np.ndarray) -> tuple[dict[int, float], int]:
        """The probabilities of the tokens that may be chosen, and the chosen one, -1 without."""
        all_ = np.zeros(len(row), _ENTRY)
        all_["id"], all_["logit"] = np.arange(len(row)), row
        data = all_.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
        left = llama.llama_token_data_array(data, len(row), -1, False)
        llama.llama_sampler_apply(self.chain, ctypes.byref(left))
        first = (ctypes.addressof(left.data.contents) - all_.ctypes.data) // _ENTRY.itemsize
        kept = all_[first : first + left.size]
        token = int(kept["id"][left.selected]) if left.selected >= 0 else -1
        kept = kept[kept["logit"] > -np.inf]
        weights = np.exp(kept["logit"].astype(np.float64) - kept["logit"].max())
        return dict(zip(kept["id"].tolist(), (weights / weights.sum()).tolist(), strict=True)), token

    def close(self) -> None:
        llama.llama_sampler_free(self.chain)
