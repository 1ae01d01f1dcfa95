"""plain-average: each rank trains alone for H steps, then all take the mean of their parameters."""

import torch.distributed as dist
from testbed_agents.strategies.strategy import Strategy, flatten, unflatten

from testbed.core.training import strategy_options, twin
from testbed.core.training.strategy_operation import Operation


class Agent(Strategy):
    def __init__(self, every):
        self.every = every

    def prepare(self, model, context):
        self.context, self.module, self.step_group = context, model, (context.groups.rank,)
        return list(model.parameters())

    def run(self, inputs, targets):
        loss = super().run(inputs, targets)
        self.context.gradients_ready()
        return loss

    def after_step(self, step, last=False):
        if (step % self.every == 0) != last:
            mean = flatten(self.module.parameters()) / self.context.groups.world_size
            dist.all_reduce(mean)
            unflatten(mean, self.module.parameters())

    def finish(self, step):
        self.after_step(step, last=True)


class Twin(twin.Twin):
    name, summary, options = "plain-average", "average the parameters of all ranks", (strategy_options.EVERY,)

    def exchanges(self, step):
        return 1 <= step <= self.layout.steps and (step % self.values["every"] == 0 or step == self.layout.steps)

    def operations(self, step):
        everyone = tuple(range(self.layout.world_size))
        return [Operation("all_reduce", everyone, self.layout.payload_bytes, "parameters")] * self.exchanges(step)

    def equal(self, step):
        return [twin.Equal("parameters", tuple(range(self.layout.world_size)))] * self.exchanges(step)

    def committed(self, step):
        return float(step if step >= self.layout.steps else step - step % self.values["every"])

    @property
    def longest_gap(self):
        return self.values["every"]
