"""One pipeline stage as a process of its own: joins the group, loads a draft if told to, goes on with the next step.

Usage: ``python pipeline_stage.py RANK STORE FOLDER LOAD_FORMAT BOUND_S``; an empty LOAD_FORMAT loads nothing. Prints
one line of JSON: which phase it reached, and the sum of what it loaded.
"""

import datetime as dt
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def load(files, load_format):
    """``{name: sum}`` of all tensors, read as the engine's loader of that name reads them."""
    if load_format == "fastsafetensors":
        from fastsafetensors.parallel_loader import ParallelLoader

        loader = ParallelLoader(
            pg=dist.group.WORLD,
            hf_weights_files=files,
            queue_size=0,
            use_tqdm_on_load=False,
            device="cpu",
            nogds=True,
        )
        return {name: float(tensor.sum()) for name, tensor in loader.iterate_weights()}
    from safetensors import safe_open

    sums = {}
    for file in files:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            sums.update((name, float(tensors.get_tensor(name).sum())) for name in tensors.keys())  # noqa: SIM118
    return sums


def main(rank, store, folder, load_format, bound_s):
    torch.set_num_threads(1)
    # Joining may take a while on a busy machine; only the steps after it are bounded tightly.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=int(rank),
        world_size=2,
        timeout=dt.timedelta(seconds=60),
    )
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(dt.timedelta(seconds=float(bound_s)), dist.group.WORLD)
    phase, sums, error = "loading", {}, None
    try:
        if load_format:
            sums = load(sorted(str(path) for path in Path(folder).glob("*.safetensors")), load_format)
        phase = "next step"
        dist.all_reduce(torch.ones(1))
        phase = "done"
    except RuntimeError as raised:
        error = str(raised)
    sys.stdout.write(
        json.dumps({"phase": phase, "tensors": len(sums), "sum": sum(sums.values()), "error": error})
    )
    sys.stdout.flush()
    # No tidy shutdown: a group with a stuck collective can't be destroyed.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
