"""A reader in a process of its own, which does what it is told by JSON lines."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback

import torch

from app.reader import Region, StaleLeaseError

BANDWIDTH_REPEATS = 20


class Reader:
    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self.leases = []

    def attach(self):
        started = time.perf_counter()
        self.region = Region.attach(self.socket_path)
        attached = time.perf_counter()
        [lease] = self.region.forward([[1]])
        with lease:
            leased = time.perf_counter()
            lease.tensor()  # opens the slab
            opened = time.perf_counter()
        return {
            "attach_ms": (attached - started) * 1e3,
            "open_ms": (opened - leased) * 1e3,
            "kind": self.region.descriptor.kind,
        }

    def digest(self, lease):
        """Of the rows' bytes as another process leased them."""
        with self.region.open(lease) as held:
            rows = held.tensor()
            data = rows.contiguous().view(torch.uint8).cpu().numpy().tobytes()
            held.check()
        return {
            "sha256": hashlib.sha256(data).hexdigest(),
            "device": rows.device.type,
            "dtype": str(rows.dtype),
        }

    def views(self, lease):
        """The same bytes under other dtypes."""
        with self.region.open(lease) as held:
            rows = held.tensor()
            raw = rows.view(torch.uint8)
            as_fp8 = raw.view(torch.float8_e4m3fn)
            same = bool((as_fp8.view(torch.uint8) == raw).all())
            as_bf16 = raw.view(torch.bfloat16)
            equal = as_bf16.shape == rows.shape and bool((as_bf16 == rows).all())
            held.check()
        return {"fp8_bytes_equal": same, "bf16_equal": equal}

    def publish(self, count):
        """Forward, read, compare with the first time: the slots are used again and again."""
        prompts = [[7] * 5, [8] * 30, [9] * 100]
        first, times, stale = {}, [], 0
        for number in range(count):
            prompt = prompts[number % len(prompts)]
            started = time.perf_counter()
            [lease] = self.region.forward([prompt])
            rows = lease.tensor()
            times.append((time.perf_counter() - started) * 1e3)
            copy = rows.float().cpu().clone()  # of rows in host memory neither of the two makes a copy
            try:
                lease.check()
            except StaleLeaseError:
                stale += 1
                continue
            expected = first.setdefault(len(prompt), copy)
            if not torch.allclose(copy, expected, rtol=2e-2, atol=2e-2):
                return {"wrong": number}
            lease.release()
        times.sort()
        return {"stale": stale, "publish_ms": times[len(times) // 2], "wrong": None}

    def hold(self, prompts):
        self.leases = self.region.forward(prompts, lease_ttl_s=600)
        self.rows = [lease.tensor() for lease in self.leases]
        return {"held": len(self.leases)}

    def is_stale(self):
        try:
            self.leases[0].check()
        except StaleLeaseError:
            return {"stale": True}
        return {"stale": False}

    def bandwidth(self):
        """GB/s of reading the mapped rows against reading memory of this process."""
        [lease] = self.region.forward([[5] * self.region.descriptor.rows_per_slot])
        rows = lease.tensor().view(torch.uint8)
        local = rows.clone()
        target = torch.empty_like(rows)
        return {
            "mapped_gb_s": _speed(target, rows),
            "local_gb_s": _speed(target, local),
            "bytes": rows.numel(),
        }


def _speed(target, source):
    target.copy_(source)
    best = 0.0
    for _ in range(BANDWIDTH_REPEATS):
        _synchronize(target)
        started = time.perf_counter()
        target.copy_(source)
        _synchronize(target)
        best = max(best, source.numel() / (time.perf_counter() - started) / 1e9)
    return best


def _synchronize(tensor):
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)


def main():
    reader = Reader(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(reader, asked.pop("op"))(**asked)
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
