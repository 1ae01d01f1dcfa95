"""jax with gloo on CPUs: the collectives of ``jax.lax`` in a ``shard_map`` over one device a process.

Traps: jax passes gloo no interface, so gloo uses the address that the host's name resolves to; the call that makes
gloo's transport is wrapped here. gloo's timeout is fixed in XLA, and ``timeout_s`` reaches only the coordinator. jax
itself ends a process whose peer died, once the coordinator misses its heartbeats.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"  # without it 64-bit types silently become 32-bit ones

import jax  # type: ignore[import-not-found, unused-ignore]
import ml_dtypes  # type: ignore[import-not-found, unused-ignore]
import numpy as np
from jax.experimental import multihost_utils  # type: ignore[import-not-found, unused-ignore]
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # type: ignore[import-not-found, unused-ignore]

from testbed_agents.adapters.helper import TYPES, WORLD, Adapter, Array, Call, Offer, Unsupported, World, main

AXIS = "ranks"
REDUCTIONS = {"sum": jax.lax.psum, "max": jax.lax.pmax, "avg": jax.lax.pmean}


class JaxGloo(Adapter):
    offers: Mapping[str, Offer] = {
        # A psum is assumed to be the same on all devices: shard_map returns it as one replicated value.
        "all_reduce": Offer(reductions=("sum", "max", "avg"), same_bits=True),
        "reduce_scatter": Offer(reductions=("sum",)),
        "all_gather": Offer(),
        "all_to_all": Offer(),
        "send": Offer(),
        "barrier": Offer(),
    }
    groups = True

    def __init__(self) -> None:
        self.library, self.version = "jax gloo", jax.__version__
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def join(self, world: World) -> None:
        if jax.distributed.is_initialized():
            raise RuntimeError("jax makes its CPU client only once in a process")
        _pin(world.interface)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator_address=f"{world.master}:{world.port}",
            num_processes=world.size,
            process_id=world.rank,
            initialization_timeout=max(1, round(world.timeout_s)),
        )
        self._devices = {device.process_index: device for device in jax.devices()}

    def group(self, name: str, ranks: tuple[int, ...]) -> None:
        pass  # a mesh of some of the devices

    def prepare(self, call: Call) -> None:
        if call.do == "barrier":
            if call.group != WORLD:
                raise Unsupported("jax has no barrier for a subset of the processes")
            return
        if call.do in ("all_gather", "reduce_scatter") and not call.count:
            raise Unsupported(f"jax cannot compile {call.do} of empty blocks")
        if _key(call) not in self._compiled:
            mesh, spec = self._mesh(call), PartitionSpec(AXIS)
            program = jax.shard_map(_program(call), mesh=mesh, in_specs=spec, out_specs=spec)
            blocks = call.size if call.do in ("reduce_scatter", "all_to_all") else 1
            sharding = NamedSharding(mesh, spec)
            shape = jax.ShapeDtypeStruct((mesh.size * blocks * call.count,), _type(call), sharding=sharding)
            self._compiled[_key(call)] = jax.jit(program).lower(shape).compile()

    def place(self, call: Call, array: Array) -> Any:
        if call.do == "barrier" or (call.do == "send" and call.rank not in (call.root, call.to)):
            return array
        if call.do == "send" and call.rank == call.to:
            array = np.zeros(
                call.count, TYPES[call.type]
            )  # each device needs an input to a program, and gets an output
        mesh = self._mesh(call)
        local = jax.device_put(array.view(_type(call)), self._devices[call.ranks[call.rank]]).block_until_ready()
        sharding = NamedSharding(mesh, PartitionSpec(AXIS))
        return jax.make_array_from_single_device_arrays((mesh.size * array.size,), sharding, [local])

    def fetch(self, call: Call, buffer: Any) -> Array:
        return np.asarray(buffer.addressable_data(0)).view(TYPES[call.type])

    def perform(self, call: Call, given: Any, room: Any) -> Any:
        if call.do == "barrier":
            multihost_utils.sync_global_devices(f"call {call.number}")
            return None
        output = self._compiled[_key(call)](given).block_until_ready()
        return None if call.do == "send" and call.rank == call.root else output

    def _mesh(self, call: Call) -> Any:
        ranks = (call.ranks[call.root], call.ranks[call.to]) if call.do == "send" else call.ranks
        return Mesh(np.array([self._devices[rank] for rank in ranks]), (AXIS,))


def _pin(interface: str) -> None:
    from jax._src.lib import _jax  # type: ignore[import-not-found, unused-ignore]

    _jax.make_gloo_tcp_collectives = functools.partial(_jax.make_gloo_tcp_collectives, interface=interface)


def _key(call: Call) -> tuple[Any, ...]:
    """Return what identifies a compiled program."""
    return call.do, call.ranks, call.type, call.count, call.reduction, call.root, call.to


def _type(call: Call) -> Any:
    return ml_dtypes.bfloat16 if call.type == "bfloat16" else TYPES[call.type]


def _program(call: Call) -> Any:
    """Return what each device does with its own block."""
    match call.do:
        case "all_reduce":
            reduction = REDUCTIONS[call.reduction]
            return lambda block: reduction(block, AXIS)
        case "reduce_scatter":
            return lambda block: jax.lax.psum_scatter(block, AXIS, tiled=True)
        case "all_gather":
            return lambda block: jax.lax.all_gather(block, AXIS, tiled=True)
        case "all_to_all":
            return lambda block: jax.lax.all_to_all(block, AXIS, 0, 0, tiled=True)
        case "send":
            return lambda block: jax.lax.ppermute(block, AXIS, [(0, 1)])
    raise Unsupported(call.do)


if __name__ == "__main__":
    main(JaxGloo())
