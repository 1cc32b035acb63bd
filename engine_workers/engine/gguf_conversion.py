"""Turns a GGUF file of the Llama family into the files that vLLM and tokenizers read.

Owns the conversion, in two parts: what the metadata holds (tokenizer, chat template, configuration;
seconds, no torch) and the weights (transformers dequantizes them; memory for the whole model).
Does not own where files go or when: `model` does.

Source: GGUF specification (ggml-org/ggml docs/gguf.md); keys `tokenizer.ggml.*`, `llama.*`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS_FILE = "model.safetensors"

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """What the metadata of a GGUF file says."""

    tokenizer_json: str
    chat_template: str
    config: dict[str, Any]
    generation_config: dict[str, Any]


class UnsupportedGguf(ValueError):
    """The file is of a kind that this conversion does not know."""


def read_gguf(path: Path) -> GgufModel:
    """Read everything but the weights. Raises UnsupportedGguf."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    fields = {name: field.contents for name, field in reader.fields.items()}
    kind = (fields["general.architecture"](), fields["tokenizer.ggml.pre"]())
    if kind != ("llama", "smollm"):
        raise UnsupportedGguf(f"{path.name}: architecture and tokenizer {kind} are not supported")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    eos_id = fields["tokenizer.ggml.eos_token_id"]()
    special = {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"](),
        "eos_token_id": eos_id,
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"](),
    }
    return GgufModel(
        tokenizer_json=_tokenizer_json(
            fields["tokenizer.ggml.tokens"](),
            fields["tokenizer.ggml.token_type"](),
            fields["tokenizer.ggml.merges"](),
        ),
        chat_template=fields["tokenizer.chat_template"](),
        config=_config(fields) | special | {"tie_word_embeddings": tied},
        generation_config=special,
    )


def write_weights(path: Path, folder: Path) -> None:
    """Dequantize the weights into one bfloat16 safetensors file in `folder`; takes 15 s, 1 GB."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    model.config.__dict__.pop("quantization_config", None)  # dequantized: no longer true
    model.save_pretrained(str(folder), max_shard_size="1TB")


def _tokenizer_json(tokens: list[str], types: list[int], merges: list[str]) -> str:
    """Build the byte-level BPE tokenizer; numbers are split into digits (pre-tokenizer smollm).

    Source: llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(t, special=True)
            for t, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer.add_tokens(
        [AddedToken(t) for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    )
    return str(tokenizer.to_str())


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the model configuration in transformers' names."""
    heads = fields["llama.attention.head_count"]()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": fields["llama.vocab_size"](),
        "hidden_size": fields["llama.embedding_length"](),
        "intermediate_size": fields["llama.feed_forward_length"](),
        "num_hidden_layers": fields["llama.block_count"](),
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"](),
        "head_dim": fields["llama.embedding_length"]() // heads,
        "max_position_embeddings": fields["llama.context_length"](),
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"](),
        "rope_parameters": {"rope_theta": fields["llama.rope.freq_base"](), "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
