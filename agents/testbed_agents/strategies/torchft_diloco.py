"""torchft-diloco: torchft's own DiLoCo as its users run it, for comparison with ours. Needs the extra ``torchft``.

Each site is a replica group: torchft's Manager of local rank 0 speaks to a lighthouse, which says before each
exchange who takes part; then local rank i forms a process group with the ranks i of the other sites, and averages the
*whole* model. So a site of r ranks sends r times what ``diloco`` sends. These process groups are torchft's own and
made anew whenever the membership changes; the watched group does not see them.

When an exchange fails torchft resets the parameters to the last one that did not, and goes on: the steps between are
lost. What torchft says of each exchange is in the records (``exchange``) and, if it failed, in the rank's log.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from testbed_agents.exchange.sums import gather_into
from testbed_agents.strategies.periodic_exchange import ReplicaTraining
from testbed_agents.strategies.strategy import Context

__all__ = ["TorchftDiloco"]

INSTALL = "pip install 'scale-across-testbed[torchft]'"
_ADDRESS_BYTES = 128
"""Of an address in ASCII, padded."""
JOIN_MS, HEARTBEAT_MS, TICK_MS = 10_000, 1000, 50
"""Of the lighthouse: how long it waits for more groups, what silence of a group is its end, how often it looks."""


class TorchftDiloco(ReplicaTraining):
    """Options as of the twin.

    ``every``: H. ``lighthouse``: site whose first rank runs it, empty: the first; or the URL of one elsewhere, as
    on the management network. ``exchange_timeout``, ``quorum_timeout``: torchft's, in s. ``start``: ``equal``, or
    ``copied`` for torchft's ``init_sync``, which copies the first site's state at the start although all are equal:
    with several ranks a site, torchft 0.2 then leaves ranks of one site with different parameters, without an error.
    """

    def __init__(
        self,
        every: int = 50,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        lighthouse: str = "",
        exchange_timeout: float = 8.0,
        quorum_timeout: float = 60.0,
        start: str = "equal",
    ) -> None:
        super().__init__("site")
        self._every, self._rate, self._momentum = every, outer_rate, outer_momentum
        self._place, self._copies = lighthouse, start == "copied"
        self._timeout, self._quorum_timeout = timedelta(seconds=exchange_timeout), timedelta(seconds=quorum_timeout)
        self._served: list[Any] = []
        """Lighthouse and store, which others use until all have ended."""
        self._version = 0
        """Exchanges that torchft has committed."""
        self._since = 0
        """Steps since the last exchange."""

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        try:
            from torchft import Manager, ProcessGroupGloo
            from torchft.local_sgd import DiLoCo
        except ImportError as error:
            raise ValueError(f"strategy torchft-diloco needs torchft ({error}): {INSTALL}") from error
        sites = context.groups.members
        if len({len(ranks) for ranks in sites.values()}) > 1:
            raise ValueError("strategy torchft-diloco needs as many ranks at each site")
        parameters = super().prepare(model, context)
        local_rank, ranks = context.groups.local_rank, sites[context.groups.site]
        own = self._serve(context)
        addresses = _tell_all(own, context)
        place = self._place or context.groups.site_names[0]
        if "://" not in place and place not in sites:
            raise ValueError(f"unknown site of the lighthouse '{place}' (available: {', '.join(sites)})")
        url = place if "://" in place else f"http://{addresses[sites[place][0]].partition(' ')[2]}"
        host, _, port = addresses[ranks[0]].partition(" ")[0].rpartition(":")
        self._group = ProcessGroupGloo(timeout=self._timeout)
        self._transport = _transport(context, self._timeout)
        try:
            self.manager = Manager(
                pg=self._group,
                load_state_dict=model.load_state_dict,
                state_dict=model.state_dict,
                min_replica_size=1,
                use_async_quorum=False,  # DiLoCo needs it
                timeout=self._timeout,
                quorum_timeout=self._quorum_timeout,
                connect_timeout=timedelta(seconds=context.timeout_s),
                rank=local_rank,
                world_size=len(ranks),
                store_addr=host,
                store_port=int(port),
                lighthouse_addr=url,
                replica_id=f"{context.groups.site_names.index(context.groups.site)}-{context.groups.site}",
                hostname=context.address,
                checkpoint_transport=self._transport,
                init_sync=self._copies,
            )
        except (RuntimeError, TimeoutError) as error:
            raise RuntimeError(f"torchft: {error}") from error
        # torchft counts the steps of an optimizer by hooks, and the one that trains is the loop's. This one changes
        # nothing: no parameter has a gradient when it is called.
        self._counter = torch.optim.SGD(parameters, lr=0.0)
        outer = torch.optim.SGD(parameters, lr=self._rate, momentum=self._momentum, nesterov=self._momentum > 0)
        self._diloco = DiLoCo(self.manager, [model], self._counter, outer, sync_every=self._every)
        self._diloco.__enter__()
        self._saved = {"numbers": torch.zeros(2, dtype=torch.int64)}
        for index, fragment in enumerate(self._diloco._fragments):
            self._saved |= {f"outer.{index}.{name}": tensor for name, tensor in fragment.original_parameters.items()}
        for index, parameter in enumerate(parameters):
            if self._momentum:
                # SGD makes it in its first step, from the first gradient; zeros before are the same.
                buffer = outer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
                self._saved[f"momentum.{index}"] = buffer
        return parameters

    def after_step(self, step: int) -> None:
        self._count(step)

    def finish(self, step: int) -> None:
        """End with an exchange: torchft has one only after H steps, so the rest is counted without training."""
        while self._since:
            self._count(step)
        self._diloco.__exit__(None, None, None)
        dist.barrier()  # the lighthouse must be there until all have ended
        self._leave()

    def _leave(self) -> None:
        """End torchft's own threads, connections and listeners here: with the job, not with the process."""
        # Manager.shutdown(wait=False) leaves the transport's thread and port (torchft 0.2), and with True it may wait
        # for a quorum as long as its timeout.
        self._transport.shutdown(wait=True)
        self.manager.shutdown(wait=False)
        for served in self._served:
            if hasattr(served, "shutdown"):
                served.shutdown()
        self._group.shutdown()
        # The rest ends with its objects. They refer to each other, and to collect them takes seconds on a busy machine.
        self._served.clear()
        vars(self.manager).clear()

    def _count(self, step: int) -> None:
        self._since += 1
        before, began_t = self.manager.current_step(), time.monotonic()
        try:
            for parameter in self.parameters:
                parameter.grad = None
            self._counter.step()
        except (RuntimeError, TimeoutError) as error:
            raise RuntimeError(f"torchft: {error}") from error
        if self._since < self._every:
            return
        self._since = 0
        self._version = self.manager.current_step()
        committed = self._version > before
        failed = self.manager.errored()
        reason = "" if failed is None else str(failed).partition("\n")[0]
        self.context.checks.exchange(
            what="torchft",
            version=self._version,
            committed=committed,
            participants=self.manager.num_participants(),
            took_s=time.monotonic() - began_t,
            error=reason,
        )
        if not committed:
            print(
                f"torchft: the exchange after step {step} was not committed; the last {self._every} steps are lost: "
                f"{reason or 'no reason given'}",
                flush=True,
            )

    def settle(self, step: int) -> None:
        self._saved["numbers"].copy_(torch.tensor((self._since, self._version)))

    def state(self) -> dict[str, Tensor]:
        return self._saved

    def loaded(self) -> None:
        self._since, self._version = (int(number) for number in self._saved["numbers"])
        self._diloco._local_step = self._since
        self.manager.load_state_dict({"step": self._version, "batches_committed": 0})

    @property
    def outer_version(self) -> int:
        return self._version

    def outer_parameters(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.parameters]

    def _serve(self, context: Context) -> str:
        """Serve what others need of this rank; return "STORE LIGHTHOUSE", each HOST:PORT or empty."""
        if context.groups.local_rank:
            return ""
        store = TCPStore(context.address, 0, None, is_master=True, wait_for_workers=False)
        self._served.append(store)
        lighthouse = ""
        place = self._place or context.groups.site_names[0]
        if place == context.groups.site:
            from torchft.coordination import LighthouseServer

            server = LighthouseServer(
                bind=f"{context.address}:0",
                min_replicas=1,
                join_timeout_ms=JOIN_MS,
                quorum_tick_ms=TICK_MS,
                heartbeat_timeout_ms=HEARTBEAT_MS,
            )
            self._served.append(server)
            lighthouse = f"{context.address}:{server.address().rpartition(':')[2]}"
        return f"{context.address}:{store.port} {lighthouse}"


def _transport(context: Context, timeout: timedelta) -> Any:
    """Return how a site fetches another's state: by address, because names may not resolve in a lab."""
    import inspect

    from torchft.checkpointing.http_transport import HTTPTransport

    takes = inspect.signature(HTTPTransport.__init__).parameters
    hostname = {"hostname": context.address} if "hostname" in takes else {}
    return HTTPTransport(timeout=timeout, num_chunks=0, **hostname)


def _tell_all(own: str, context: Context) -> list[str]:
    """Return what each rank says, by rank. A collective call."""
    written = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8)
    data = own.encode()
    written[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    everyone = torch.empty(context.groups.world_size * _ADDRESS_BYTES, dtype=torch.uint8)
    gather_into(everyone, written)
    return [bytes(row).rstrip(b"\0").decode() for row in everyone.view(-1, _ADDRESS_BYTES).tolist()]
