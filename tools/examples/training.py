# SPDX-License-Identifier: Apache-2.0
"""Synchronous data-parallel training: each host its own data, one model, a ring all-reduce a step.

On every host, with the same list of hosts and its own place in it, from 0:

    python -m tools.examples.training RANK HOST HOST [HOST ...]

A perceptron of two hidden layers (numpy) learns which of ten random directions a random point lies
in. Every step each rank computes the gradient of a batch of its own, all gradients are summed over
the network, and every rank takes the same step: the ranks' parameters stay the same to the last
bit, and the slowest path of the slowest host decides how long a step takes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import numpy as np

import mrc
from tools.examples.ring import Ring, Vector, join

INPUTS, HIDDEN, CLASSES = 64, 256, 10
BATCH = 64
"""Points of one rank and step."""

RATE = 0.1
SHOWN_EVERY = 10


class Model:
    """A perceptron: ReLU, ReLU, softmax.

    Attributes:
        parameters: All of them, one vector.
    """

    def __init__(self, seed: int) -> None:
        """Draws parameters; the same ones for the same seed."""
        shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,)]
        shapes += [(HIDDEN, CLASSES), (CLASSES,)]
        self._shapes = shapes
        self.parameters = np.zeros(sum(map(_count, shapes)), np.float32)
        rng = np.random.default_rng(seed)
        for weights in self._parts(self.parameters)[::2]:
            weights[:] = rng.normal(0, (2 / len(weights)) ** 0.5, weights.shape)

    def _parts(self, vector: Vector) -> list[Vector]:
        """Views of a vector, as the matrices and biases that it stands for."""
        ends = np.cumsum([_count(shape) for shape in self._shapes])[:-1]
        pieces = np.split(vector, ends)
        return [piece.reshape(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def gradient(self, points: Vector, labels: np.ndarray, into: Vector) -> float:
        """Writes the gradient of the mean cross entropy, and returns that.

        Args:
            points: One a row.
            labels: The class of each.
            into: As long as `parameters`.
        """
        w1, b1, w2, b2, w3, b3 = self._parts(self.parameters)
        first = np.maximum(points @ w1 + b1, 0)
        second = np.maximum(first @ w2 + b2, 0)
        scores = second @ w3 + b3
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        right = (np.arange(len(labels)), labels)
        loss = -np.log(chances[right]).mean()
        chances[right] -= 1
        d3 = chances / len(labels)
        d2 = (d3 @ w3.T) * (second > 0)
        d1 = (d2 @ w2.T) * (first > 0)
        parts = self._parts(into)
        for each, (inputs, error) in enumerate([(points, d1), (first, d2), (second, d3)]):
            np.matmul(inputs.T, error, out=parts[2 * each])
            np.sum(error, axis=0, out=parts[2 * each + 1])
        return float(loss)

    def digest(self) -> str:
        """SHA-256 of the parameters."""
        return hashlib.sha256(self.parameters.tobytes()).hexdigest()


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        loss: The mean of all ranks, before it.
        seconds: That it took, the computing included.
    """

    loss: float
    seconds: float


async def train(ring: Ring, model: Model, goes_on: Callable[[], bool]) -> AsyncIterator[Step]:
    """Trains until one of the ranks wants no more; all end with the same step.

    Args:
        ring: The ranks.
        model: The same on all of them.
        goes_on: Asked before each step.

    Raises:
        mrc.ConnectionLost: A neighbour is gone.
    """
    size = len(model.parameters)
    directions = np.random.default_rng(0).normal(size=(INPUTS, CLASSES)).astype(np.float32)
    rng = np.random.default_rng([1, ring.rank])
    shared = np.empty(size + 2, np.float32)  # the gradient, the loss, and who has had enough
    while True:
        began = time.monotonic()
        points = rng.normal(size=(BATCH, INPUTS)).astype(np.float32)
        labels = (points @ directions).argmax(axis=1)
        shared[size] = model.gradient(points, labels, shared[:size])
        shared[size + 1] = not goes_on()
        await ring.all_reduce(shared)
        if shared[size + 1]:
            return
        model.parameters -= RATE / ring.size * shared[:size]
        yield Step(loss=float(shared[size]) / ring.size, seconds=time.monotonic() - began)


async def run(args: argparse.Namespace) -> dict[str, object]:
    """Trains as the arguments say; returns what it came to."""
    config = mrc.Config()
    if args.topology is not None:
        config = mrc.Config(routing="srv6", topology=args.topology)
    model = Model(seed=2)
    steps: list[Step] = []
    async with mrc.Endpoint(config=config) as endpoint, endpoint.listen() as listener:
        ring = await join(endpoint, listener, args.hosts, args.rank)
        async for step in train(ring, model, lambda: len(steps) < args.steps):
            steps.append(step)
            if not args.json and len(steps) % SHOWN_EVERY == 0:
                last = statistics.median(each.seconds for each in steps[-SHOWN_EVERY:])
                print(f"step {len(steps)}: loss {step.loss:.4f}, {last * 1e3:.1f} ms", flush=True)
        await ring.close()
    return {
        "steps": len(steps),
        "first_loss": steps[0].loss,
        "last_loss": steps[-1].loss,
        "median_step_s": statistics.median(each.seconds for each in steps),
        "longest_step_s": max(each.seconds for each in steps),
        "parameters_sha256": model.digest(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.examples.training")
    parser.add_argument("rank", type=int, help="this host's place in the list, from 0")
    parser.add_argument("hosts", nargs="+", help="of all ranks, in order")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--topology", metavar="FILE", help="name paths by the uSIDs of this fabric")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    args = parser.parse_args(argv)
    if len(args.hosts) < 2 or not 0 <= args.rank < len(args.hosts) or args.steps < 1:
        parser.error("there are two hosts or more, a rank among them, and a step or more")
    try:
        result = asyncio.run(run(args))
    except mrc.MRCError as error:
        print(f"training: {error}", file=sys.stderr)
        return 1
    for key, value in result.items() if not args.json else ():
        print(f"{key}: {value}")
    if args.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
