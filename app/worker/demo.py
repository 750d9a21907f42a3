"""The demo target: a tiny random Qwen3-shaped model, so that the first command works without a GPU or a download.

Its bytes come from SHAKE-256, not from torch's generator: every machine and every torch release builds the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from .target_error import TargetError

DEMO_MODEL = "draftport/demo-target"
DEMO_VERSION = 1
_MANIFEST = "manifest.json"
_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM, _MLP = 128, 4, 4, 2, 32, 256
_BYTE_TOKENS = 256
_SPECIAL_TOKENS = ("<|endoftext|>", "<|mask|>")
_VOCAB = 320  # room for the special tokens, a round number as real embeddings have
_SPREAD = 0.08


def demo_target(cache_dir: str) -> Path:
    """The demo target's directory below ``cache_dir``, built when it is missing or broken.

    Builders may race: each builds aside, one renames, the others take what is there.

    Raises:
        TargetError: ``cache_unwritable``.
    """
    root = Path(cache_dir).expanduser() if cache_dir else _default_cache()
    final = root / f"demo-target-{DEMO_VERSION}"
    if is_intact(final):
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".demo-target-", dir=root))
        try:
            write_demo_target(aside)
            _move_into_place(aside, final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise _unwritable() from error
    return final


def is_intact(directory: Path) -> bool:
    """Whether all files are there with the digests that their builder noted."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_bytes())
        return bool(manifest) and all(
            hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest
            for name, digest in manifest.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def write_demo_target(directory: Path) -> None:
    """Writes the model, its tokenizer and the manifest of both."""
    from safetensors.torch import save_file  # noqa: PLC0415 - brings torch, seconds of start-up

    save_file(_weights(), directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", _config())
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    (directory / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())
    }
    _write_json(directory / _MANIFEST, digests)


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "draftport" if base else Path.home() / ".cache" / "draftport"


def _unwritable() -> TargetError:
    return TargetError(
        "cache_unwritable",
        "The demo target can't be built: the cache directory can't be written; set another one or set TARGET.",
    )


def _move_into_place(aside: Path, final: Path) -> None:
    # mkdtemp makes directories private; the cache's own mode decides who may read.
    aside.chmod(0o755)
    for _ in range(3):
        with suppress(OSError):
            aside.rename(final)
            return
        if is_intact(final):
            return
        # A leftover is moved away, not emptied in place: another process may be reading it.
        broken = Path(tempfile.mkdtemp(prefix=".demo-target-broken-", dir=final.parent))
        with suppress(OSError):
            final.rename(broken / "leftover")
        shutil.rmtree(broken, ignore_errors=True)
    raise OSError("the demo target's place can't be taken")


def _config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": _BYTE_TOKENS,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": _MLP,
        "max_position_embeddings": 4096,
        "model_type": "qwen3",
        "num_attention_heads": _HEADS,
        "num_hidden_layers": _LAYERS,
        "num_key_value_heads": _KV_HEADS,
        "pad_token_id": _BYTE_TOKENS,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": _VOCAB,
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (_VOCAB, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (_HIDDEN,),
            prefix + "post_attention_layernorm.weight": (_HIDDEN,),
            prefix + "self_attn.q_proj.weight": (_HEADS * _HEAD_DIM, _HIDDEN),
            prefix + "self_attn.k_proj.weight": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            prefix + "self_attn.v_proj.weight": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            prefix + "self_attn.o_proj.weight": (_HIDDEN, _HEADS * _HEAD_DIM),
            prefix + "self_attn.q_norm.weight": (_HEAD_DIM,),
            prefix + "self_attn.k_norm.weight": (_HEAD_DIM,),
            prefix + "mlp.gate_proj.weight": (_MLP, _HIDDEN),
            prefix + "mlp.up_proj.weight": (_MLP, _HIDDEN),
            prefix + "mlp.down_proj.weight": (_HIDDEN, _MLP),
        }
    return shapes


def _weights() -> dict[str, Any]:
    import torch  # noqa: PLC0415 - seconds of start-up, and not needed when the files are there

    weights = {}
    for name, shape in _shapes().items():
        count = torch.Size(shape).numel()
        noise = hashlib.shake_256(f"{DEMO_MODEL} {DEMO_VERSION} {name}".encode()).digest(2 * count)
        values = torch.frombuffer(bytearray(noise), dtype=torch.int16).to(torch.float32) / 32768
        centre = 1.0 if name.endswith("norm.weight") else 0.0
        weights[name] = (centre + _SPREAD * values).reshape(shape)
    return weights


def _tokenizer_json() -> str:
    """A byte-level tokenizer: every byte of a text is a token, so that any text works."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - optional extra

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL_TOKENS])
    text: str = tokenizer.to_str(pretty=True)
    return text


def _tokenizer_config() -> dict[str, Any]:
    return {
        "clean_up_tokenization_spaces": False,
        "eos_token": _SPECIAL_TOKENS[0],
        "mask_token": _SPECIAL_TOKENS[1],
        "model_max_length": 4096,
        "pad_token": _SPECIAL_TOKENS[0],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
