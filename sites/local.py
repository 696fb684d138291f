"""This machine: a laptop or workstation, every GPU a GCD, or every CPU core where there is none."""

import os
from pathlib import Path

import psutil
import torch
from parsl import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

from hydragnn_flow.execution import Node, Site
from hydragnn_flow.placement import Gcd


def cpu_node() -> Node:
    """Each core of the machine is a GCD."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    slots = cores or 1
    memory = psutil.virtual_memory().total / 2**30
    return Node(
        gcds=tuple(str(slot) for slot in range(slots)),
        gcd=Gcd(
            memory_gib=0.9 * memory / slots,
            # One core of a 2024 server processor, one thread, measured on training steps of
            # hidden_dim 8 to 64; where yours differs, the first finished trials correct it.
            flops=3e10,
            bandwidth=1.8e10,
            launch_seconds=1.5e-5,
            process_gib=0.6,
            share=4,
        ),
        cores_per_gcd=1,
        device="cpu",
    )


def gpu_node() -> Node:
    """Each GPU of the machine is a GCD."""
    gpus = torch.cuda.device_count()
    return Node(
        gcds=tuple(str(gpu) for gpu in range(gpus)),
        gcd=Gcd(
            memory_gib=0.9 * torch.cuda.get_device_properties(0).total_memory / 2**30,
            flops=1e13,
            bandwidth=1e12,
            launch_seconds=1e-5,
            process_gib=0.6,
            share=4,
        ),
        cores_per_gcd=max(1, (os.cpu_count() or 1) // gpus),
        device="hip" if torch.version.hip else "cuda",
    )


def site() -> Site:
    """The machine this runs on."""
    node = gpu_node() if torch.cuda.is_available() else cpu_node()

    def parsl_config(directory: Path) -> Config:
        def pool(label: str, workers: int, blocks: int) -> HighThroughputExecutor:
            return HighThroughputExecutor(
                label=label,
                address="127.0.0.1",
                encrypted=True,
                max_workers_per_node=workers,
                cores_per_worker=1e-6,  # the number of workers above is what counts
                prefetch_capacity=0,
                # Workers of a driver that was killed notice within these seconds and leave.
                heartbeat_period=2,
                heartbeat_threshold=10,
                provider=LocalProvider(
                    init_blocks=blocks, min_blocks=0, max_blocks=1, nodes_per_block=1
                ),
            )

        return Config(
            executors=[pool("gcd", len(node.gcds), 1), pool("node", 1, 0)],
            run_dir=str(directory),
            strategy="simple",
            strategy_period=1,
            # The search's workers leave their memory to the members.
            max_idletime=20,
        )

    return Site(name="local", nodes=1, node=node, parsl_config=parsl_config)
