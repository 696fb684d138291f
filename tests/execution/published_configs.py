"""Configurations of machines as pages print them, with their labels, placeholders and arguments.

Parsl's are those of its folder `parsl/configs`, ALCF's those of its pages "Parsl on Polaris" and
"Parsl on Aurora", read in their versions of August 2026.
"""

IMPORTS = """
import os
from parsl.addresses import address_by_interface
from parsl.config import Config
from parsl.executors import HighThroughputExecutor, MPIExecutor, ThreadPoolExecutor
from parsl.launchers import JsrunLauncher, MpiExecLauncher, SimpleLauncher, SrunLauncher
from parsl.providers import LocalProvider, LSFProvider, PBSProProvider, SlurmProvider
from parsl.providers import TorqueProvider
from parsl.usage_tracking.levels import LEVEL_1
from parsl.utils import get_all_checkpoints
"""


def _page(executor: str, provider: str, rest: str = "usage_tracking=LEVEL_1") -> str:
    return f"config = Config(executors=[HighThroughputExecutor({executor}, {provider})], {rest})\n"


PARSL_POLARIS = _page(
    "available_accelerators=4, address=address_by_interface('bond0'), "
    "cpu_affinity='alternating', prefetch_capacity=0",
    "provider=PBSProProvider(account='YOUR_ACCOUNT', walltime='YOUR_WALLTIME', queue='prod', "
    "worker_init='module load conda; conda activate YOUR_ENV', "
    "scheduler_options='#PBS -l filesystems=home:eagle', launcher=MpiExecLauncher("
    "bind_cmd='--cpu-bind', overrides='--depth=64 --ppn 1'), select_options='ngpus=4', "
    "nodes_per_block=128, min_blocks=0, max_blocks=1, cpus_per_node=64)",
)
ALCF_POLARIS = """
run_dir = "/lus/eagle/projects/yourproject/yourrundir/"
user_opts = {
    "worker_init": f"source /path/to/your/virtualenv/bin/activate; cd {run_dir}",
    "scheduler_options": "#PBS -l filesystems=home:eagle", "account": "YOURPROJECT",
    "queue": "debug-scaling", "walltime": "1:00:00", "nodes_per_block": 3, "cpus_per_node": 32,
    "available_accelerators": 4,
}
checkpoints = get_all_checkpoints(run_dir)
""" + _page(
    "label='htex', heartbeat_period=15, heartbeat_threshold=120, worker_debug=True, "
    "available_accelerators=user_opts['available_accelerators'], "
    "max_workers_per_node=user_opts['available_accelerators'], prefetch_capacity=0, "
    "cpu_affinity='list:24-31,56-63:16-23,48-55:8-15,40-47:0-7,32-39'",
    "provider=PBSProProvider(launcher=MpiExecLauncher(bind_cmd='--cpu-bind', "
    "overrides='--depth=64 --ppn 1'), account=user_opts['account'], queue=user_opts['queue'], "
    "select_options='ngpus=4', scheduler_options=user_opts['scheduler_options'], "
    "worker_init=user_opts['worker_init'], nodes_per_block=user_opts['nodes_per_block'], "
    "init_blocks=1, min_blocks=0, max_blocks=1, cpus_per_node=user_opts['cpus_per_node'], "
    "walltime=user_opts['walltime'])",
    "checkpoint_files=checkpoints, run_dir=run_dir, checkpoint_mode='task_exit', retries=2, "
    "app_cache=True",
)
_AURORA = (
    "address=address_by_interface('hsn0'), max_workers_per_node=12, prefetch_capacity=0, "
    "available_accelerators=[f'{gid}.{tid}' for gid in range(6) for tid in range(2)], "
    "cpu_affinity='list:1-8,105-112:9-16,113-120:17-24,121-128:25-32,129-136:33-40,137-144:41-48,"
    "145-152:53-60,157-164:61-68,165-172:69-76,173-180:77-84,181-188:85-92,189-196:93-100,197-204'"
)
_PPN_1 = "launcher=MpiExecLauncher(bind_cmd='--cpu-bind', overrides='--ppn 1')"
AURORA = "execute_dir = os.getcwd()\naurora_single_tile_" + _page(
    _AURORA,
    "provider=PBSProProvider(account='Aurora_deployment', queue='debug', walltime='0:30:00', "
    "worker_init=f'source $HOME/_env/bin/activate; cd {execute_dir}', select_options='', "
    f"scheduler_options='#PBS -l filesystems=home:flare', {_PPN_1}, nodes_per_block=1, "
    "min_blocks=0, max_blocks=1, cpus_per_node=208)",
    "retries=1",
)
AURORA_IN_A_JOB = """
with open(os.getenv("PBS_NODEFILE"), "r") as f:
    num_nodes = len(f.readlines())
""" + _page(
    _AURORA,
    f"provider=LocalProvider(nodes_per_block=num_nodes, {_PPN_1}, init_blocks=1, max_blocks=1)",
)
EXPANSE = _page(
    "label='Expanse_CPU_Multinode', max_workers_per_node=32",
    "provider=SlurmProvider('compute', account='YOUR_ALLOCATION_ON_EXPANSE', worker_init='', "
    "launcher=SrunLauncher(), scheduler_options='', walltime='01:00:00', init_blocks=1, "
    "max_blocks=1, nodes_per_block=2)",
)
ANVIL = _page(
    "label='Anvil_GPU_Executor', working_dir='/anvil/scratch/your/directory', "
    "max_workers_per_node=1",
    "provider=SlurmProvider(partition='gpu', account='YOUR_ALLOCATION_ON_ANVIL', "
    "nodes_per_block=1, cores_per_node=4, mem_per_node=50, init_blocks=1, max_blocks=1, "
    "walltime='00:30:00', scheduler_options='#SBATCH --gres gpu:1 --gpus-per-node=1', "
    "worker_init='module load modtree/gpu', exclusive=False, launcher=SrunLauncher())",
)
FRONTERA = _page(
    "label='frontera_htex', max_workers_per_node=1",
    "provider=SlurmProvider(cmd_timeout=60, nodes_per_block=2, init_blocks=1, min_blocks=1, "
    "max_blocks=1, partition='normal', scheduler_options='#SBATCH -A <YOUR_ALLOCATION>', "
    "worker_init='', walltime='00:10:00', launcher=SrunLauncher())",
)
SUMMIT = _page(
    "label='Summit_HTEX', working_dir='YOUR_WORKING_DIR_ON_SHARED_FS', "
    "address=address_by_interface('ib0'), worker_port_range=(50000, 55000)",
    "provider=LSFProvider(launcher=JsrunLauncher(), walltime='00:10:00', nodes_per_block=2, "
    "init_blocks=1, max_blocks=1, worker_init='', project='YOUR_PROJECT_ALLOCATION', "
    "cmd_timeout=60)",
)
BRIDGES = _page(
    "label='Bridges_HTEX_multinode', address=address_by_interface('ens3f0'), "
    "max_workers_per_node=1",
    "provider=SlurmProvider('YOUR_PARTITION_NAME', nodes_per_block=2, init_blocks=1, "
    "scheduler_options='', worker_init='', launcher=SrunLauncher(), walltime='00:10:00', "
    "cmd_timeout=120)",
)
