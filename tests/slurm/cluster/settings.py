"""The files a private Slurm reads, and why each setting is as it is."""

from __future__ import annotations

from pathlib import Path

SUBNET = "10.177.0"
LOGIN = "login1"
LOGIN_ADDRESS = f"{SUBNET}.254"
GCDS = 8
CORES = 64
MEMORY_MIB = 512_000
PARTITION = "batch"
INTERFACE = "hsn0"
"""The private network, by the same name on every node and on the login node."""

_SLURM_CONF = """\
ClusterName=frontier
SlurmctldHost={login}({login_address})
SlurmctldPort=16817
# Everything runs as root, in namespaces of its own.
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/run/munge.socket
CredType=cred/munge
# The controller answers on the private network only.
CommunicationParameters=NoCtldInAddrAny
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/run/slurmctld.pid
SlurmdPidFile={home}/run/%n.pid
SlurmctldLogFile={home}/log/slurmctld.log
SlurmdLogFile={home}/log/%n.log
# No control groups: containers seldom have them to give.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Jobs start within a second of their submission.
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=0,batch_sched_delay=0,defer_batch_time=0
# A node claims the cores and memory below, whatever the machine has.
SlurmdParameters=config_overrides
GresTypes=gpu
# A node that lost power is back in service as soon as its daemon runs again.
ReturnToService=2
SlurmdTimeout=20
KillWait=5
# squeue answers for ended jobs so long.
MinJobAge=86400
MessageTimeout=10
TCPTimeout=5
PrologFlags=Alloc
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=EXCLUSIVE
"""
_NODE = (
    "NodeName={name} NodeAddr={address} NodeHostname={name} Port=16818 CPUs={cores} Boards=1 "
    "SocketsPerBoard=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={memory} Gres=gpu:{gcds}"
)
# amd_gpu_env: jobs find their devices in ROCR_VISIBLE_DEVICES, as on Frontier.
_GRES_CONF = "AutoDetect=off\nName=gpu File={home}/dev/gcd[0-{last}] Flags=amd_gpu_env\n"


def address(node: int) -> str:
    """Of a node, counted from 1."""
    return f"{SUBNET}.{node}"


def write_settings(home: Path, nodes: tuple[str, ...]) -> None:
    """Write every file the daemons read into ``home/etc``."""
    etc = home / "etc"
    conf = _SLURM_CONF.format(
        home=home, login=LOGIN, login_address=LOGIN_ADDRESS, partition=PARTITION
    )
    hosts = [f"127.0.0.1 localhost\n{LOGIN_ADDRESS} {LOGIN}\n"]
    for number, name in enumerate(nodes, start=1):
        conf += _NODE.format(
            name=name, address=address(number), cores=CORES, memory=MEMORY_MIB, gcds=GCDS
        )
        conf += "\n"
        hosts.append(f"{address(number)} {name}\n")
    (etc / "slurm.conf").write_text(conf)
    (etc / "gres.conf").write_text(_GRES_CONF.format(home=home, last=GCDS - 1))
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # the default's probe fails here
    (etc / "hosts").write_text("".join(hosts))
    # No name server is reachable from a node, so nothing should wait for one.
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
