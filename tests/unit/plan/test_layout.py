"""What a worker is told to capture, and what it must refuse."""

import pytest

from app.drafting.layout import LayoutError, capture_layout, sized_capture

TARGET = {"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 10, "torch_dtype": "torch.bfloat16"}
STREAMS = {"model_type": "deepseek_v4", "hidden_size": 8, "num_hidden_layers": 10, "hc_mult": 4}


def test_without_a_drafter_it_is_the_final_state():
    layout = capture_layout(TARGET, rows=16)
    assert (layout.source, layout.norm, layout.width) == ("final", "post", 8)
    assert (layout.dtype, layout.bytes_per_token, layout.rows, layout.buffer_bytes) == (
        "bfloat16",
        16,
        16,
        256,
    )
    assert layout.capture_points is None


def test_named_layers_keep_their_order_and_the_last_one_is_before_the_norm():
    layout = capture_layout(TARGET, aux_layer_ids=[7, 0, 10])
    assert layout.source == "aux_layers"
    assert layout.capture_points == layout.layer_ids == (7, 0, 10)
    assert (layout.norm, layout.width) == ("pre", 24)


def test_a_drafters_layers_are_captured_in_its_convention():
    draft = {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 4, 7]}}
    layout = capture_layout(TARGET, draft_config=draft)
    assert (layout.layer_ids, layout.capture_points) == ((1, 4, 7), (2, 5, 8))
    assert layout.convention == "layer_output"


def test_a_drafter_without_ids_gets_the_engines_default():
    layout = capture_layout(TARGET, draft_config={"architectures": ["LlamaForCausalLMEagle3"]})
    assert (layout.source, layout.capture_points) == ("aux_layers", (2, 5, 7))


def test_a_speculators_file_is_read_as_written():
    draft = {
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"},
        "transformer_layer_config": {"hidden_size": 8},
        "eagle_aux_hidden_state_layer_ids": [2, 5],
    }
    assert capture_layout(TARGET, draft_config=draft).capture_points == (2, 5)


def test_streams_are_captured_side_by_side_for_mtp():
    layout = capture_layout(STREAMS, draft_config={"num_nextn_predict_layers": 1})
    assert (layout.source, layout.norm, layout.width) == ("pre_hc_head", "pre", 32)


def test_a_nested_language_model_is_found():
    layout = capture_layout({"model_type": "vl", "hidden_size": 3, "text_config": TARGET})
    assert (layout.width, layout.num_layers, layout.hidden_size) == (8, 10, 8)


def test_sizes_can_be_filled_in_later():
    layout = sized_capture(capture_layout({"hidden_size": 8, "num_hidden_layers": 2}), "float32", 4)
    assert (layout.bytes_per_token, layout.buffer_bytes) == (32, 128)


@pytest.mark.parametrize(
    ("target", "options", "code"),
    [
        (TARGET, {"aux_layer_ids": [2, 2]}, "layer_ids_not_distinct"),
        (TARGET, {"aux_layer_ids": [11]}, "layer_id_out_of_range"),
        (TARGET, {"aux_layer_ids": [-1]}, "layer_id_out_of_range"),
        (TARGET, {"aux_layer_ids": []}, "layer_ids_missing"),
        (TARGET, {"capture": "aux_layers"}, "layer_ids_missing"),
        (TARGET, {"capture": "pre_hc_head"}, "hc_mult_missing"),
        ({"num_hidden_layers": 2}, {}, "hidden_size_missing"),
        ({"hidden_size": 2}, {}, "num_layers_missing"),
        ({"hidden_size": True, "num_hidden_layers": 2}, {}, "hidden_size_missing"),
        (
            TARGET,
            {"draft_config": {"target_layer_ids": [1, 10], "mask_token_id": 1}},
            "layer_id_out_of_range",
        ),
        (TARGET, {"draft_config": {"pard2": True, "pard2_target_layers": [-1]}}, "layer_ids_not_read"),
        (
            TARGET,
            {"draft_config": {"target_layer_ids": [-1, -2], "mask_token_id": 1}},
            "layer_ids_unmappable",
        ),
        (
            TARGET,
            {"draft_config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}},
            "layer_ids_not_read",
        ),
        (
            TARGET,
            {"draft_config": {"num_nextn_predict_layers": 1, "target_hidden_size": 9}},
            "width_mismatch",
        ),
        (
            TARGET,
            {"draft_config": {"dflash_config": {"target_layer_ids": [1, 2]}, "num_aux_layers": 3}},
            "width_mismatch",
        ),
        (TARGET, {"draft_config": {"pard2_target_dim": 17}, "aux_layer_ids": [1, 2]}, "width_mismatch"),
    ],
)
def test_what_a_target_cannot_serve_is_refused(target, options, code):
    with pytest.raises(LayoutError) as caught:
        capture_layout(target, **options)
    assert caught.value.code == code
    assert caught.value.detail.endswith(".")


def test_declared_widths_that_fit_are_accepted():
    draft = {"pard2": True, "pard2_target_dim": 16, "target_hidden_size": 8, "num_aux_layers": 2}
    assert capture_layout(TARGET, draft_config=draft, aux_layer_ids=[1, 2]).width == 16


def test_a_hostile_list_is_cut_in_the_message():
    with pytest.raises(LayoutError) as caught:
        capture_layout(TARGET, aux_layer_ids=list(range(10_000)))
    assert len(caught.value.detail) < 500
