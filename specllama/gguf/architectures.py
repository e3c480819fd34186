"""The architectures, by `general.architecture`, that the vendored llama.cpp (llama-cpp-python 0.3.36) loads.

Copied from `src/llama-arch.cpp`: LLM_ARCH_NAMES without the dummies, and its predicates. Knows no files.
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

# Layers with a sliding window where the header has no list of them: every so many layers one is without, the
# last of them (False) or the first (True).
SWA_PATTERNS = {
    "afmoe": (4, False), "cohere2": (4, False), "cohere2moe": (4, True), "exaone-moe": (4, False),
    "exaone4": (4, False), "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False),
    "gpt-oss": (2, False), "laguna": (4, True), "llama4": (4, False), "mellum": (4, False),
    "muse-glimmer": (4, False), "olmo2": (4, False), "plamo3": (8, False), "smallthinker": (4, True),
}  # fmt: skip

# llama.cpp makes no KV cache for them: embedding, audio and diffusion models, which are not autoregressive.
NOT_CAUSAL = _names(
    """
    bert dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert
    nomic-bert nomic-bert-moe rnd1 t5encoder wavtokenizer-dec
    """
)

# Of these and others, those that make vectors of texts; all tokens attend to all others.
ENCODERS = _names(
    """
    bert eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llama-embed modern-bert neo-bert nomic-bert
    nomic-bert-moe
    """
)

# There is a graph for their blocks of multi-token prediction (LLM_GRAPH_TYPE_DECODER_MTP); others skip them.
MTP = _names(
    """
    bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe hy_v3 mimo2 nemotron_h_moe qwen35
    qwen35moe qwen3next step35
    """
)

# Of these, those that run more than one such block, each for its own draft step; the others assert one.
MTP_CHAINED = _names("hy_v3 mimo2 step35")

# They do not load if the header promises such blocks and the file lacks them; others ignore the promise.
MTP_REQUIRED = _names(
    "bailingmoe2 exaone-moe exaone4 glm4 glm5-next nemotron_h nemotron_h_moe qwen35 qwen35moe qwen3next"
)

# Tensors of such a block, besides those of heads/mtp.py, without which an assertion ends the process.
MTP_ASSERTED: dict[str, tuple[str, ...]] = {
    "bailingmoe3": ("nextn.shared_head_norm",),
    "mimo2": ("attn_qkv", "ffn_gate", "ffn_up", "ffn_down"),
    "nemotron_h_moe": ("ffn_gate_inp", "nextn.shared_head_norm"),
    **dict.fromkeys(
        ("cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "qwen35moe", "qwen3next"),
        ("ffn_gate_inp",),
    ),
}

# The graph hands out the input of every layer (t_layer_inp), which EAGLE-3 and block drafters read. Elsewhere
# the first decode ends the process. qwen4exp sets it in another width, which ends it too.
LAYER_INPUTS = _names(
    """
    bailingmoe3 deepseek4 gemma4 gpt-oss hunyuan-dense hunyuan_vl lfm2 lfm2moe llama mimo2 minimax-01
    minimax-m2 muse-glimmer nanbeige nemotron_h nemotron_h_moe qwen3 qwen35 qwen35moe qwen3moe qwen3next
    """
)

# Of these, those that hand out the output of the last layer as the input of one more.
LAST_LAYER_OUTPUT = _names("deepseek4 mimo2 nemotron_h nemotron_h_moe")

# The graph fills the rows that llama_get_embeddings_nextn returns (t_h_nextn), which MTP and assistants
# read, and EAGLE-3 heads for the output of the last layer.
NEXTN_ROWS = _names(
    """
    bailingmoe3 cohere2moe deepseek2 deepseek2-ocr deepseek32 deepseek4 gemma4 glm-dsa glm4moe glm5-next
    gpt-oss hy_v3 mimo2 mistral4 nemotron_h nemotron_h_moe qwen35 qwen35moe qwen3next step35
    """
)
