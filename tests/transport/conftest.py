import asyncio

import pytest
import uvloop


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on each kind of loop."""
    return request.param


@pytest.fixture
def eventually():
    """Awaits a condition, at most ten seconds, letting the loop run in between."""

    async def wait_for(condition):
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - any condition, also on what other processes did
                await asyncio.sleep(0.001)

    return wait_for
