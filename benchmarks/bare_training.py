"""The same training as a job of the testbed's agents, as a plain torch script: what `watched_group` compares with.

Imports torch alone. The small GPT, or a model that sleeps in its layers; DistributedDataParallel over gloo with buckets
of a given size; AdamW; random windows of a text. Model, data, seeds and buckets are those of the agents, so that both
end with the same parameters, which `watched_group` makes certain. Run it in torchrun's environment:

    torchrun --nproc-per-node 2 benchmarks/bare_training.py --text FILE --steps 60 --out FILE
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import time
from collections import deque
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 4, 64, 96, 4, 4
ELEMENTS, SLEEPING_LAYERS, VECTORS = 1_300_000, 24, 4
"""Of the model that sleeps: parameters, layers, and vectors in a layer."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(WIDTH, 3 * WIDTH)
        self.outward = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        three = self.inward(x).split(WIDTH, dim=2)
        query, key, value = (each.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for each in three)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.outward(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.inward, self.outward = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.outward(functional.gelu(self.inward(self.norm2(x))))
        return out


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.position = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.position, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                scale = math.sqrt(2 * LAYERS) if name.endswith("outward") else 1.0
                nn.init.normal_(module.weight, std=0.02 / scale)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


class Clock:
    """Deadlines of the layers that sleep: a third of a step in the forward pass, the rest in the backward pass."""

    def __init__(self, layers: int) -> None:
        self.layers, self.due_t, self.slot_s = layers, 0.0, 0.0

    def begin(self, seconds: float) -> None:
        self.due_t, self.slot_s = time.monotonic(), seconds / self.layers

    def sleep(self, share: float) -> None:
        self.due_t += share * self.slot_s
        if (left_s := self.due_t - time.monotonic()) > 0:
            time.sleep(left_s)


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, part: float, targets: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.save_for_backward(*weights)
        ctx.clock, ctx.targets = clock, targets
        squares = sum(float((w - t).square_().sum()) for w, t in zip(weights, targets, strict=True))
        out = x + part * squares
        clock.sleep(1 / 3)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        share = gradients[0].sum()
        own = [(w - t).mul_(share) for w, t in zip(ctx.saved_tensors, ctx.targets, strict=True)]
        ctx.clock.sleep(2 / 3)
        return (gradients[0], None, None, None, *own)


class Sleeping(nn.Module):
    def __init__(self, elements: int, layers: int, clock: Clock, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.clock, self.weights, self.targets = clock, nn.ParameterList(), []
        self.per_layer = []
        for layer in range(layers):
            of_layer = elements // layers + (layer < elements % layers)
            sizes = [of_layer // VECTORS + (index < of_layer % VECTORS) for index in range(VECTORS)]
            self.weights.extend(nn.Parameter(0.02 * torch.randn(size)) for size in sizes)
            self.targets.append([0.1 * torch.randn(size, generator=generator) for size in sizes])
            self.per_layer.append(0.5 / (layers * of_layer))

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.zeros(*tokens.shape, WIDTH)
        for layer, (targets, part) in enumerate(zip(self.targets, self.per_layer, strict=True)):
            own = [self.weights[VECTORS * layer + index] for index in range(VECTORS)]
            x = Sleep.apply(x, self.clock, part, targets, *own)  # type: ignore[no-untyped-call]
        return x


def train(arguments: argparse.Namespace, rank: int) -> dict[str, Any]:
    """Train over the initialised default group; return t and CPU seconds at the end of each step, by getrusage(2)."""
    torch.manual_seed(0)
    seconds = arguments.asleep
    clock = Clock(arguments.layers)
    model = Sleeping(arguments.elements, arguments.layers, clock, rank) if seconds else Gpt()
    text = torch.frombuffer(bytearray(Path(arguments.text).read_bytes()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(rank)
    ddp = DistributedDataParallel(model, bucket_cap_mb=arguments.bucket_mib)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    behind: deque[float] = deque([0.0], maxlen=9)
    steps = []
    for _ in range(arguments.steps):
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        windows = text[starts + torch.arange(CONTEXT + 1)].long()
        clock.begin(seconds - statistics.median(behind))
        out = ddp(windows[:, :-1])
        targets = windows[:, 1:]
        loss = out.mean() if seconds else functional.cross_entropy(out.flatten(0, 1), targets.flatten())
        loss.backward()
        t = time.monotonic()
        optimizer.step()
        optimizer.zero_grad()
        behind.append(time.monotonic() - t)
        used = getrusage(RUSAGE_SELF)
        steps.append((time.monotonic(), used.ru_utime + used.ru_stime))
    digest = hashlib.sha256()
    for each in model.parameters():
        digest.update(each.detach().numpy().tobytes())
    return {"steps": steps, "parameters": digest.hexdigest()}


def parsed(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="file to train on")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", help="file for the result, as JSON; {rank} in it is the rank")
    parser.add_argument("--bucket-mib", type=float, default=0.225, help="size of a bucket (default: an eighth)")
    parser.add_argument("--asleep", type=float, default=0.0, help="train the model that sleeps so many seconds a step")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="parameters of the model that sleeps")
    parser.add_argument("--layers", type=int, default=SLEEPING_LAYERS, help="its layers")
    return parser.parse_args(argv)


def main() -> None:
    arguments = parsed()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    found = train(arguments, rank)
    Path(arguments.out.replace("{rank}", str(rank))).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
