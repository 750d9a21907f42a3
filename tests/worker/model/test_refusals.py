"""What can't be held is refused with a code and one sentence, before any weight is read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.transport.worker_config import WorkerConfig
from app.worker.inspect_target import inspect_target
from app.worker.target_error import TargetError


@pytest.fixture
def copy(demo_dir, tmp_path) -> Path:
    """A copy of the demo target to damage."""
    return shutil.copytree(demo_dir, tmp_path / "secret-parent" / "target")


def _edit(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _refused(target: Path | str, **settings: Any) -> TargetError:
    with pytest.raises(TargetError) as caught:
        inspect_target(WorkerConfig(target=str(target), **{"device": "cpu", **settings}))
    _check_detail(caught.value)
    return caught.value


def _refused_on_load(target: Path, **settings: Any) -> TargetError:
    plan = inspect_target(WorkerConfig(target=str(target), **{"device": "cpu", **settings}))
    read = []
    with pytest.raises(TargetError) as caught:
        plan.load(lambda done, _total: read.append(done))
    _check_detail(caught.value)
    caught.value.weights_read = read
    return caught.value


def _check_detail(error: TargetError) -> None:
    assert "secret-parent" not in error.detail
    assert error.detail.endswith(".")
    assert len(error.detail) < 400


def test_a_missing_directory(tmp_path):
    assert _refused(tmp_path / "secret-parent" / "nowhere").code == "target_not_found"


def test_a_directory_without_config(copy):
    (copy / "config.json").unlink()

    assert _refused(copy).code == "target_not_found"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"x"', "[" * 5000, "\ufeff{}", '{"a": \x00}', " " * (9 << 20)]
)
def test_a_broken_config(copy, text):
    (copy / "config.json").write_text(text)

    error = _refused(copy)
    assert error.code == "target_invalid"
    assert "config.json" in error.detail


@pytest.mark.parametrize("value", [None, "many", -1, 0, True, [4]])
@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_an_unusable_size(copy, name, value):
    _edit(copy, **{name: value})

    assert _refused(copy).code in {"target_invalid", "layout_unsupported"}


def test_no_weights(copy):
    (copy / "model.safetensors").unlink()

    error = _refused(copy)
    assert error.code == "target_invalid"
    assert "model.safetensors" in error.detail


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "x.ckpt"])
def test_pickles_only(copy, name):
    (copy / "model.safetensors").rename(copy / name)

    error = _refused(copy)
    assert error.code == "checkpoint_unsafe"
    assert name in error.detail


def test_a_pickle_beside_safetensors_is_never_opened(copy):
    (copy / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")

    assert inspect_target(WorkerConfig(target=str(copy), device="cpu")).weight_bytes > 0


@pytest.mark.parametrize("cut", [1, 1000, 2_000_000, 2_533_600])
def test_truncated_weights(copy, cut):
    weights = copy / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - cut)

    error = _refused(copy)
    assert error.code == "target_invalid"
    assert "model.safetensors" in error.detail


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{",
        (16).to_bytes(8, "little") + b'{"a":{"dtype":1}}'[:16],
        (10).to_bytes(8, "little") + b'{"a":null}',
        (51).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":"x","data_offsets":[0]}}'[:51],
    ],
)
def test_weights_that_are_no_safetensors(copy, header):
    (copy / "model.safetensors").write_bytes(header)

    assert _refused(copy).code == "target_invalid"


def _index(directory: Path, weight_map: Any) -> None:
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "weight_map", [None, {}, [], {"a": 5}, {"a": "model-00001-of-00002.safetensors", "b": None}]
)
def test_an_index_that_names_no_shards(copy, weight_map):
    _index(copy, weight_map)

    assert _refused(copy).code == "target_invalid"


def test_a_missing_shard(copy):
    _index(copy, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})

    error = _refused(copy)
    assert error.code == "target_invalid"
    assert "model-00002-of-00002.safetensors" in error.detail


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/x.safetensors", "pytorch_model.bin", ".."]
)
def test_an_index_that_points_elsewhere(copy, name):
    _index(copy, {"a": name})

    assert _refused(copy).code == "checkpoint_unsafe"


@pytest.mark.parametrize(
    "settings",
    [
        {"capture": "aux_layers"},
        {"capture": "aux_layers", "aux_layer_ids": ()},
        {"capture": "aux_layers", "aux_layer_ids": (5,)},
        {"capture": "aux_layers", "aux_layer_ids": (-1, 2)},
        {"capture": "aux_layers", "aux_layer_ids": (1, 2, 1)},
        {"capture": "pre_hc_head"},
    ],
)
def test_a_layout_that_the_target_can_not_serve(copy, settings):
    assert _refused(copy, **settings).code == "layout_unsupported"


def test_no_hc_head_is_noticed_before_weights_are_read(copy):
    _edit(copy, hc_mult=4)

    error = _refused_on_load(copy, capture="pre_hc_head")
    assert error.code == "layout_unsupported"
    assert "hc_head" in error.detail
    assert error.weights_read == []


@pytest.mark.parametrize(
    ("draft", "code"),
    [
        ({"target_hidden_size": 64, "dflash_config": {"mask_token_id": 5}}, "layout_unsupported"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 9]}, "layout_unsupported"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1]}, "layout_unsupported"),
        ([], "draft_invalid"),
        (None, "draft_not_found"),
    ],
)
def test_a_drafter_that_does_not_fit(copy, tmp_path, draft, code):
    directory = tmp_path / "draft"
    directory.mkdir()
    if draft is not None:
        (directory / "config.json").write_text(json.dumps(draft))

    assert _refused(copy, draft=str(directory)).code == code


@pytest.mark.parametrize("dtype", ["nonsense", "", "int8", "float64", "float8_e4m3fn", "bfloat16; rm"])
def test_an_impossible_dtype(copy, dtype):
    assert _refused(copy, dtype=dtype).code == "dtype_unsupported"


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "cuda:x", "cpu:1", ""])
def test_an_impossible_device(copy, device):
    assert _refused(copy, device=device).code == "device_unavailable"


@pytest.mark.parametrize("limit", [0, -5])
def test_an_impossible_limit(copy, limit):
    assert _refused(copy, max_num_batched_tokens=limit).code == "limit_invalid"


def test_an_unknown_architecture(copy):
    _edit(copy, model_type="made_up", auto_map={"AutoModel": "modeling.Model"})
    (copy / "modeling.py").write_text("raise SystemExit('code of a checkpoint was run')")

    error = _refused_on_load(copy)
    assert error.code == "target_unsupported"
    assert error.weights_read == []


@pytest.mark.parametrize("changes", [{"model_type": "t5", "is_encoder_decoder": True}, {"model_type": None}])
def test_no_language_model(copy, changes):
    _edit(copy, **changes)

    assert _refused(copy).code in {"target_unsupported", "target_invalid"}


def test_a_config_that_transformers_refuses(copy):
    _edit(copy, num_attention_heads="four")

    error = _refused_on_load(copy)
    assert error.code in {"target_invalid", "target_unsupported"}
    assert error.weights_read == []


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 5}, {"intermediate_size": 128}])
def test_weights_that_do_not_fit_the_config(copy, changes):
    """transformers would fill the gaps with random numbers."""
    _edit(copy, **changes)

    assert _refused_on_load(copy).code == "target_invalid"


def test_more_weights_than_memory(copy):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 41], "data_offsets": [0, 1 << 43]}}).encode()
    weights = copy / "model.safetensors"
    weights.unlink()
    with weights.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        try:
            file.truncate(8 + len(header) + (1 << 43))
        except OSError:
            pytest.skip("this file system has no sparse files of 8 TiB")

    error = _refused(copy)
    assert error.code == "out_of_memory"
    assert str(1 << 43) in error.detail


def test_a_hub_id_with_the_hub_off():
    error = _refused("org/name", hub="off")

    assert error.code == "target_not_found"
    assert "org/name" in error.detail
