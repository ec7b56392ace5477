import asyncio

from gpuplane.start import background
from gpuplane.start.background import BackgroundTask


async def test_a_defect_does_not_end_it(monkeypatch):
    monkeypatch.setattr(background, "AGAIN_SECONDS", 0.01)
    runs: list[int] = []
    well = asyncio.Event()

    async def run():
        runs.append(len(runs))
        if len(runs) < 3:
            raise ValueError("a defect")
        well.set()
        await asyncio.Event().wait()

    task = BackgroundTask("rounds", run)
    task.start()
    async with asyncio.timeout(30):
        await well.wait()
        await task.stop()
    assert runs == [0, 1, 2]


async def test_one_that_ends_by_itself_is_over():
    runs: list[int] = []
    ran = asyncio.Event()

    async def run():
        runs.append(len(runs))
        ran.set()

    task = BackgroundTask("once", run)
    task.start()
    async with asyncio.timeout(30):
        await ran.wait()
        await task.stop()
    assert runs == [0]
