"""Texts of a fleet: whoever waits for a replica does so no longer than its caller."""

import asyncio

import pytest

from jitney.core.params import Constraint, ConstraintKind
from jitney.engine.request_factory import GivenUp, RequestFactory
from tests.unit.cluster.conftest import make_cluster, until


async def test_a_caller_whose_time_is_over_holds_no_thread() -> None:
    """Guards the few threads that make requests: a stuck replica held one for a minute, long after
    the deadline of its request. Nor is the replica asked any longer."""
    async with make_cluster(1) as cluster:
        asked: list[object] = []
        ended: list[object] = []

        async def stuck(method: str, given: object) -> None:
            asked.append(given)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(given)

        cluster.dispatch.call = stuck
        factory = RequestFactory(cluster.fleet.backend, 512, lambda: 1)
        constraint = Constraint(ConstraintKind.REGEX, "a+")

        def is_wanted() -> bool:
            return not asked

        with pytest.raises(GivenUp):
            await asyncio.to_thread(factory.encode_text, "a text", is_wanted)
        asked.clear()
        ended.clear()
        with pytest.raises(GivenUp):
            await asyncio.to_thread(factory.prepare, constraint, is_wanted)
        await until(lambda: ended)


async def test_a_caller_that_waits_gets_its_tokens() -> None:
    """Guards slow replicas: to look whether a caller waits is not to give up."""
    async with make_cluster(1) as cluster:
        usual = cluster.dispatch.call
        looks: list[bool] = []
        looked = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def slow(method: str, texts: object) -> object:
            await looked.wait()
            return await usual(method, texts)

        def is_wanted() -> bool:
            looks.append(True)
            if len(looks) > 1:
                loop.call_soon_threadsafe(looked.set)
            return True

        cluster.dispatch.call = slow
        factory = RequestFactory(cluster.fleet.backend, 512, lambda: 1)
        tokens = await asyncio.to_thread(factory.encode_text, "abc", is_wanted)
        assert len(tokens) >= 3
        assert len(looks) > 1
