"""Layer ids: every public config, and every way of counting."""

import pytest

from app.drafting.taps import default_capture_points, named_taps, read_taps, unshifted_pair, vllm_capture_ids


def test_every_public_config_gives_the_ids_that_the_engine_captures(case):
    found = vllm_capture_ids(case["config"])
    assert (list(found) if found else None) == case["expected"]["vllm_aux_capture_ids"]


@pytest.mark.parametrize(
    ("config", "points", "convention", "place"),
    [
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 5]},
            (2, 5),
            "entering_layer",
            "eagle_aux_hidden_state_layer_ids",
        ),
        (
            {"dflash_config": {"target_layer_ids": [1, 4]}},
            (2, 5),
            "layer_output",
            "dflash_config.target_layer_ids",
        ),
        ({"dspark_target_layer_ids": [40, 42]}, (41, 43), "layer_output", "dspark_target_layer_ids"),
        (
            {"model_type": "deepseek_v41", "dspark_target_layer_ids": [37, 39]},
            (37, 39),
            "layer_input",
            "dspark_target_layer_ids",
        ),
        ({"target_layer_ids": [0, 1]}, (1, 2), "layer_output", "target_layer_ids"),
        ({"dflash_config": {"layer_ids": [3]}}, (3,), "entering_layer", "dflash_config.layer_ids"),
        ({"eagle_config": {"layer_ids": [3]}}, (3,), "entering_layer", "eagle_config.layer_ids"),
        (
            {"aux_hidden_state_layer_ids": [2, 9], "transformer_layer_config": {}},
            (2, 9),
            "speculators",
            "aux_hidden_state_layer_ids",
        ),
        ({"target_layer_ids": [-1, -2]}, None, "from_the_end", "target_layer_ids"),
        ({"pard2_target_layers": [-1, -8]}, None, "from_the_end", "pard2_target_layers"),
        (
            {"dflare_config": {}, "dflash_config": {"target_layer_ids": [0, 1]}},
            None,
            "position",
            "dflash_config.target_layer_ids",
        ),
        ({}, (2, 16, 29), "engine_default", None),
    ],
)
def test_conventions(config, points, convention, place):
    taps = read_taps(config, 32)
    assert (taps.capture_points, taps.convention, taps.place) == (points, convention, place)


def test_places_that_vllm_does_not_read_leave_it_with_its_default():
    taps = read_taps({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 11, 21]}}, 24)
    assert taps.layer_ids == (1, 11, 21)
    assert taps.capture_points == (2, 12, 21)
    assert not taps.engine_reads


@pytest.mark.parametrize("ids", [None, [], "1,2", [1, "2"], [True, 2], [1.5], {"0": 1}, [10**40], [[1]]])
def test_ids_that_are_no_list_of_integers_are_no_ids(ids):
    assert read_taps({"eagle_aux_hidden_state_layer_ids": ids}).layer_ids is None


def test_default_points_need_enough_layers():
    assert default_capture_points(32) == (2, 16, 29)
    assert default_capture_points(2) is None
    assert default_capture_points(4) is None


def test_an_unshifted_copy_is_seen_and_a_shifted_one_is_not():
    copied = {"eagle_aux_hidden_state_layer_ids": [1, 9], "dflash_config": {"target_layer_ids": [1, 9]}}
    assert unshifted_pair(copied) == ("eagle_aux_hidden_state_layer_ids", "dflash_config.target_layer_ids")
    shifted = {"eagle_aux_hidden_state_layer_ids": [2, 10], "dflash_config": {"target_layer_ids": [1, 9]}}
    assert unshifted_pair(shifted) is None
    assert set(named_taps(shifted).values()) == {(2, 10)}
