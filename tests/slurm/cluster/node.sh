#!/bin/bash
# node.sh HOME NAME ADDRESS INTERFACE - the first process of a node, in namespaces of its own: killing it is a loss of power.
set -euo pipefail
home=$1 name=$2 address=$3 interface=$4
hostname "$name"
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount -t tmpfs -o size=2g tmpfs "$home/scratch"
until ip -4 -brief addr show "$interface" 2>/dev/null | grep -q "$address/"; do sleep 0.02; done
slurmd -D -N "$name" -f "$home/etc/slurm.conf" &
# bash stays, to reap what jobs leave behind
while kill -0 %1; do wait || true; done
