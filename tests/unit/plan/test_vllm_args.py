"""Command lines as people have them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.drafting.vllm_args import VllmArgs, VllmArgsError, parse_vllm_args

KIMI = r"""
VLLM_USE_V2_MODEL_RUNNER=1 CUDA_VISIBLE_DEVICES=0,1 \
  vllm serve moonshotai/Kimi-K3 \
  --speculative-config '{"method": "dspark", "model": "Inferact/Kimi-K3-DSpark", "num_speculative_tokens": 7,
    "draft_tensor_parallel_size": 1, "draft_load_config": {"load_format": "auto"}, "revision": "abc"}' \
  -tp 8 --pipeline-parallel-size=2 --load_format fastsafetensors \
  --max-num-batched-tokens 8k --max_num_seqs=256 --dtype bfloat16 --revision main \
  --model-loader-extra-config '{"enable_multithread_load": true}' \
  --enforce-eager --gpu-memory-utilization 0.9 --no-enable-prefix-caching --port 8000 > serve.log 2>&1 &
"""


def test_a_whole_command_line():
    assert parse_vllm_args(KIMI) == VllmArgs(
        target="moonshotai/Kimi-K3",
        target_revision="main",
        draft="Inferact/Kimi-K3-DSpark",
        draft_revision="abc",
        speculative=True,
        method="dspark",
        num_speculative_tokens=7,
        max_num_batched_tokens=8000,
        max_num_seqs=256,
        load_config={
            "load_format": "fastsafetensors",
            "model_loader_extra_config": {"enable_multithread_load": True},
        },
        draft_load_config={"load_format": "auto"},
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
        draft_tensor_parallel_size=1,
        dtype="bfloat16",
        enable_prefix_caching=False,
        engine="vllm",
        ignored=("--enforce-eager", "--gpu-memory-utilization", "--port"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve X -tp 2",
        "vllm serve -tp 2 X",
        "vllm serve --enforce-eager X -tp=2",
        "vllm serve X --tensor-parallel-size 2",
        "vllm serve X --tensor_parallel_size=2",
        "vllm serve X -tp2",
        "vllm serve --model X -tp 2",
        "/opt/venv/bin/vllm serve X -tp 2",
        "env A=b vllm serve X -tp 2",
        "uv run vllm serve X -tp 2",
        "exec python -m vllm.entrypoints.openai.api_server --model X -tp 2",
        "python3 -m vllm.entrypoints.cli.main serve X -tp 2",
        "--model X -tp 2",
        "A=b --model=X --tensor-parallel-size=2",
        "vllm serve X -tp 2 && echo done",
        "vllm serve X -tp 2; echo -tp 3",
        "vllm serve X -tp 2 | tee -tp",
        "vllm serve X -tp 1 -tp 2",
        "vllm serve X \\\r\n  -tp 2",
        "docker run --gpus all -v /a:/b -p 8000:8000 vllm/vllm-openai:latest --model X -tp 2",
    ],
)
def test_forms_of_one_command(text):
    args = parse_vllm_args(text)
    assert (args.target, args.tensor_parallel_size, args.engine) == ("X", 2, "vllm")


def test_an_image_tag_names_the_engines_version():
    args = parse_vllm_args("docker run --rm -v /models:/models vllm/vllm-openai:v0.27.1 --model X")
    assert (args.engine, args.target) == ("vllm==0.27.1", "X")


@pytest.mark.parametrize(
    "flags",
    [
        '-sc \'{"method": "eagle", "num_speculative_tokens": 3}\'',
        '--speculative_config=\'{"method": "eagle", "num_speculative_tokens": 3}\'',
        "--speculative-config.method eagle --speculative-config.num_speculative_tokens 3",
        "-sc.method=eagle -sc.num_speculative_tokens=3",
        '-sc \'{"method": "dflash"}\' -sc.method eagle --speculative_config.num_speculative_tokens=3',
    ],
)
def test_forms_of_the_speculative_config(flags):
    args = parse_vllm_args(f"vllm serve X {flags}")
    assert (args.speculative, args.method, args.num_speculative_tokens) == (True, "eagle", 3)


def test_nested_dotted_forms():
    args = parse_vllm_args(
        "vllm serve X -sc.draft_load_config.load_format auto -sc.draft_load_config.ignore_patterns+ a "
        "-sc.draft_load_config.ignore_patterns+ b"
    )
    assert args.draft_load_config == {"load_format": "auto", "ignore_patterns": ["a", "b"]}


def test_unread_parts_of_the_speculative_config_are_named():
    args = parse_vllm_args('vllm serve X -sc \'{"model": "D", "max_model_len": 9, "quantization": null}\'')
    assert args.ignored == ("speculative_config.max_model_len", "speculative_config.quantization")


@pytest.mark.parametrize(
    ("text", "number"), [("8192", 8192), ("8k", 8000), ("8K", 8192), ("2m", 2_000_000), ("1.5k", 1500)]
)
def test_short_numbers(text, number):
    assert parse_vllm_args(f"vllm serve X --max-num-batched-tokens {text}").max_num_batched_tokens == number


def test_nothing_said_is_nothing_known():
    assert parse_vllm_args("vllm serve X") == VllmArgs(target="X")


@pytest.mark.parametrize(
    ("text", "code", "flag"),
    [
        ("", "vllm_args_no_command", None),
        ("ls -la", "vllm_args_no_command", None),
        ("docker run --name vllm nginx:1.2 --model X", "vllm_args_no_command", None),
        ("vllm serve 'X", "vllm_args_unparsable", None),
        ("vllm serve X -tp", "vllm_args_missing_value", "-tp"),
        ("vllm serve X -tp --dtype auto", "vllm_args_missing_value", "-tp"),
        ("vllm serve X -tp two", "vllm_args_invalid_value", "--tensor-parallel-size"),
        ("vllm serve X -tp 1.5", "vllm_args_invalid_value", "--tensor-parallel-size"),
        ("vllm serve X -tp -1", "vllm_args_invalid_value", "--tensor-parallel-size"),
        ("vllm serve X -tp $TP", "vllm_args_unexpanded", "--tensor-parallel-size"),
        ("vllm serve $MODEL", "vllm_args_unexpanded", "model"),
        ("vllm serve X -sc {method:eagle}", "vllm_args_invalid_value", "--speculative-config"),
        ("vllm serve X -sc '[1]'", "vllm_args_invalid_value", "--speculative-config"),
        ('vllm serve X -sc \'{"num_speculative_tokens": "3"}\'', "vllm_args_invalid_value", None),
        ("vllm serve X -sc '{\"model\": 3}'", "vllm_args_invalid_value", None),
        ("vllm serve X -sc '{\"draft_load_config\": 3}'", "vllm_args_invalid_value", None),
        ("vllm serve X -sc.a 1 -sc.a.b 2", "vllm_args_invalid_value", "--speculative-config"),
        ("vllm serve X " + "y" * 70_000, "vllm_args_too_long", None),
        ("vllm serve X " + "y " * 5_000, "vllm_args_too_long", None),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(text, code, flag):
    with pytest.raises(VllmArgsError) as caught:
        parse_vllm_args(text)
    assert caught.value.code == code
    assert caught.value.detail.endswith(".")
    assert flag in {None, caught.value.flag}


def test_deeply_nested_json_is_refused():
    deep = "[" * 20_000
    with pytest.raises(VllmArgsError):
        parse_vllm_args(f"vllm serve X -sc '{deep}'")


@settings(max_examples=400, deadline=None)
@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "vllm",
                "serve",
                "X",
                "-tp",
                "2",
                "--",
                "-",
                "-sc",
                "{}",
                "-sc.a",
                "=",
                "--a=b",
                "--a.b.c+",
                "1",
                "&",
                ">",
                "'",
            ]
        )
    ).map(" ".join)
)
def test_any_text_is_read_or_refused(text):
    try:
        read = parse_vllm_args(text)
    except VllmArgsError as error:
        read = error
    assert isinstance(read, VllmArgs) or read.code.startswith("vllm_args_")
