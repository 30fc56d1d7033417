# SPDX-License-Identifier: Apache-2.0
"""The example of a training loop: its arithmetic, without a network."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest

import mrc
from tools.examples.ring import Ring
from tools.examples.training import CLASSES, INPUTS, Model, Step, train


class Pipe:
    """One direction between two ranks, as much of a connection as a ring uses."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, data: np.ndarray) -> None:
        await self._messages.put(data.tobytes())

    async def recv_into(self, buffer: Any) -> int:
        data = await self._messages.get()
        memoryview(buffer).cast("B")[:] = data
        return len(data)


def rings(size: int) -> list[Ring]:
    pipes = [cast("mrc.Connection", Pipe()) for _ in range(size)]
    return [
        Ring(rank, size, previous=pipes[rank - 1], following=pipes[rank]) for rank in range(size)
    ]


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("length", [1, 5, 1000])
def test_an_all_reduce_leaves_every_rank_the_sum_of_all(size: int, length: int) -> None:
    rng = np.random.default_rng(size)
    whole = rng.integers(-1000, 1000, (size, length)).astype(np.float32)
    vectors = list(whole.copy())

    async def reduce() -> None:
        pairs = zip(rings(size), vectors, strict=True)
        await asyncio.gather(*(ring.all_reduce(vector) for ring, vector in pairs))

    asyncio.run(reduce())
    for vector in vectors:
        assert np.array_equal(vector, whole.sum(axis=0))


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """A step along it, backwards and forwards, changes the loss by its squared length."""
    model = Model(seed=3)
    rng = np.random.default_rng(3)
    points = rng.normal(size=(64, INPUTS)).astype(np.float32)
    labels = rng.integers(0, CLASSES, 64)
    gradient, unused = (np.empty_like(model.parameters) for _ in range(2))
    model.gradient(points, labels, gradient)
    step, here = 1e-2, model.parameters.copy()
    losses = []
    for sign in (1, -1):
        model.parameters[:] = here + sign * step * gradient
        losses.append(model.gradient(points, labels, unused))
    slope = (losses[0] - losses[1]) / (2 * step)
    assert slope == pytest.approx(float(gradient @ gradient), rel=0.02)


def test_ranks_stay_the_same_model_learn_and_stop_together() -> None:
    """Also when one of them wants to stop before the others."""

    async def learn(ring: Ring, model: Model, most: int) -> list[Step]:
        turns = iter(range(most))
        return [step async for step in train(ring, model, lambda: next(turns, None) is not None)]

    async def learn_all() -> list[list[Step]]:
        ranks = zip(rings(3), models, (80, 60, 100), strict=True)
        return await asyncio.gather(*(learn(*rank) for rank in ranks))

    models = [Model(seed=2) for _ in range(3)]
    histories = asyncio.run(learn_all())
    assert [len(steps) for steps in histories] == [60, 60, 60]
    assert len({model.digest() for model in models}) == 1
    losses = [step.loss for step in histories[0]]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert losses == [step.loss for step in histories[2]]
