"""A controller under load: asks until nobody listens any more, then prints its counts and the ids of broken requests.

``python load.py URL CLIENTS``
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter

import httpx

BODIES = (
    ("/v1/mask-token", {"config": {"pard_token": 5}}),
    ("/v1/hidden-states", {"prompt_token_ids": [[1] * 300] * 4}),
)


def ask(url, client, counts, broken, lock):
    """One client, a new connection for each request, as short-lived controllers do."""
    number = 0
    accept = "application/json;q=0.1, application/vnd.safetensors"
    while True:
        path, body = BODIES[number % 2]
        number += 1
        try:
            headers = {"accept": accept, "x-request-id": f"drill-{client}-{number}"}
            with httpx.Client(base_url=url, timeout=60, headers=headers) as http:
                answer = http.post(path, json=body)
        except httpx.ConnectError:
            with lock:
                counts["not accepted"] += 1
            return
        except httpx.TransportError as error:
            with lock:
                counts[f"broken connection ({type(error).__name__})"] += 1
                broken.append(headers["x-request-id"])
            return
        with lock:
            code = answer.json()["code"] if answer.status_code >= 400 else "answered"
            counts[code] += 1


def main():
    url, clients = sys.argv[1], int(sys.argv[2])
    counts, broken, lock = Counter(), [], threading.Lock()
    threads = [threading.Thread(target=ask, args=(url, n, counts, broken, lock)) for n in range(clients)]
    for thread in threads:
        thread.start()
    sys.stdout.write("asking\n")
    sys.stdout.flush()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps({"counts": counts, "broken": broken}) + "\n")


if __name__ == "__main__":
    main()
