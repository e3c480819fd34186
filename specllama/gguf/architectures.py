"""Which architectures the vendored llama.cpp (llama-cpp-python 0.3.36) can load, by `general.architecture`.

Copied from `src/llama-arch.cpp`: LLM_ARCH_NAMES without the dummies, and its predicates. Knows nothing about
files.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARCHITECTURES = _names(
    """
    afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom
    chameleon chatglm codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2
    deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert
    exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4
    gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox granite granite_swa
    granitehybrid granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl
    hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3 kimi-k3 kimi-linear laguna lfm2
    lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm
    minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige
    nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion
    paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe
    qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1
    rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5
    t5encoder talkie wavtokenizer-dec xverse
    """
)

# All layers are recurrent: no attention heads, no KV cache.
RECURRENT = _names("arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7")

# Some layers are recurrent; `llm_arch_is_hybrid`.
HYBRID = _names(
    """
    bailingmoe3 deepseek4 falcon-h1 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe
    minimax-01 nemotron_h nemotron_h_moe plamo2 qwen35 qwen35moe qwen3next qwen4exp
    """
)

# The recurrent state can be rolled back by up to n_rs_seq tokens; elsewhere llama.cpp clamps n_rs_seq to 0.
ROLLBACK = _names(
    """
    bailingmoe3 deepseek4 glm5-next kimi-k3 lfm2 lfm2moe nemotron_h nemotron_h_moe qwen35 qwen35moe
    qwen4exp
    """
)

# Every `full_attention_interval`-th layer attends; elsewhere recurrent layers have a head_count_kv of 0.
INTERVAL = _names("minimax-01 qwen35 qwen35moe qwen3next qwen4exp")

# llama.cpp makes no KV cache for them: embedding, audio and diffusion models, which are not autoregressive.
NOT_CAUSAL = _names(
    """
    bert dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert
    nomic-bert nomic-bert-moe rnd1 t5encoder wavtokenizer-dec
    """
)
