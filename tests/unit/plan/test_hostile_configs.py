"""Whatever JSON the configs hold, there is a plan, and it can be sent."""

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.drafting.engines import EngineRef
from app.drafting.layout import LayoutError, capture_layout
from app.drafting.pair import read_pair
from app.drafting.placement import Parallel
from app.drafting.plan import drafting_plan
from app.drafting.plan_request import PlanRequest

KEYS = [
    "aux_hidden_state_layer_ids",
    "architectures",
    "block_size",
    "dflare_config",
    "dflash_config",
    "dspark_block_size",
    "dspark_config",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dtype",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "eos_token_id",
    "hc_mult",
    "hidden_size",
    "layer_ids",
    "layer_types",
    "markov_rank",
    "mask_token_id",
    "model_type",
    "mtp",
    "mtp_config",
    "n_predict",
    "norm_before_fc",
    "num_aux_layers",
    "num_hidden_layers",
    "num_nextn_predict_layers",
    "num_target_layers",
    "parallel_drafting",
    "pard2",
    "pard2_target_dim",
    "pard2_target_layers",
    "pard_token",
    "projector_type",
    "ptd_token_id",
    "sample_from_anchor",
    "sliding_window",
    "spd_type",
    "speculators_config",
    "speculators_model_type",
    "target_hidden_size",
    "target_layer_ids",
    "target_num_hidden_layers",
    "text_config",
    "thinker_config",
    "torch_dtype",
    "transformer_layer_config",
    "use_sliding_window",
    "vocab_size",
]
WORDS = [
    "DFlashDraftModel",
    "DeepseekV4ForCausalLM",
    "LlamaForCausalLMEagle3",
    "LlamaForCausalLM",
    "Qwen3DSparkModel",
    "bfloat16",
    "torch.float16",
    "deepseek_v41",
    "deepseek_v4",
    "dflash",
    "dspark",
    "eagle3",
    "peagle",
    "pard",
    "pard2",
    "qwen3",
    "sliding_attention",
    "{reason}",
    "\ud800",
]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=6)
    ),
    max_leaves=25,
)
configs = st.none() | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), values, max_size=14)
counts = st.none() | st.integers(1, 9) | st.integers(1, 2**40)
requests = st.builds(
    PlanRequest,
    target_config=configs,
    draft_config=configs,
    target_name=st.none() | st.text(max_size=9),
    draft_name=st.none() | st.sampled_from(["x/eagle-1", "x/DFlash", "x/plain"]),
    method=st.none() | st.sampled_from([*WORDS, "mtp", "ngram", "extract_hidden_states", "medusa", "domino"]),
    num_speculative_tokens=counts,
    max_num_batched_tokens=counts,
    max_num_seqs=counts,
    parallel=st.builds(Parallel, st.integers(1, 9), st.integers(1, 9), st.none() | st.integers(1, 9)),
    dtype=st.none() | st.sampled_from(["auto", "half", "nonsense"]),
    engine=st.none()
    | st.builds(
        EngineRef, st.sampled_from(["vllm", "sglang"]), st.none() | st.sampled_from(["0.32.0", "0.33.0", "x"])
    ),
    trained_mask_token_id=st.none() | st.integers(0, 9),
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests)
def test_there_is_always_a_plan(request):
    plan = drafting_plan(request)
    assert plan.ok == all(finding.severity != "error" for finding in plan.findings)
    assert msgspec.to_builtins(plan)["ok"] is plan.ok
    for finding in plan.findings:
        assert len(finding.detail) < 2000
    # Everything that the plan calculates itself fits into JSON's 64 bits.
    msgspec.json.encode((plan.budget, plan.hidden_states and _calculated(plan.hidden_states), plan.placement))


def _layout_or_reason(target, **options):
    try:
        return capture_layout(target, **options)
    except LayoutError as error:
        return error


def _calculated(hidden):
    return hidden.width, hidden.bytes_per_token, hidden.buffer_bytes, hidden.capture_points, hidden.layer_ids


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    configs.filter(lambda config: config is not None),
    configs,
    st.none() | st.sampled_from(["final", "aux_layers", "pre_hc_head"]),
    st.none() | st.lists(st.integers(-2, 9), max_size=4),
)
def test_a_worker_gets_a_layout_or_a_reason(target, draft, capture, ids):
    layout = _layout_or_reason(target, capture=capture, aux_layer_ids=ids, draft_config=draft, rows=8)
    if isinstance(layout, LayoutError):
        assert layout.code
        assert len(layout.detail) < 1000
        return
    assert layout.width >= layout.hidden_size
    if layout.source == "aux_layers":
        assert layout.width == len(layout.capture_points) * layout.hidden_size
        assert all(0 <= point <= layout.num_layers for point in layout.capture_points)
        assert len(set(layout.capture_points)) == len(layout.capture_points)


@given(configs, configs)
@settings(max_examples=60, deadline=None)
def test_reading_a_pair_changes_nothing(target, draft):
    before = repr((target, draft))
    read_pair(PlanRequest(target_config=target, draft_config=draft))
    assert repr((target, draft)) == before
