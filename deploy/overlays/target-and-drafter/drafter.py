"""Stands for your drafter: follows the target's steps and says what it sees."""

import time

from app.reader import ConnectionLostError, Region

while True:
    try:
        # Which of the two containers starts first does not matter: this waits for a target that is still loading.
        with (
            Region.attach("/run/draftport/worker/worker.sock", timeout_s=3600) as region,
            region.steps() as steps,
        ):
            for step in steps:
                for lease in step.leases:
                    rows = lease.tensor()
                    print(f"step {step.step}: {tuple(rows.shape)} {rows.dtype} on {rows.device}", flush=True)
                    lease.check()
    except ConnectionLostError:
        time.sleep(1)  # the worker was restarted: attach to the new one
