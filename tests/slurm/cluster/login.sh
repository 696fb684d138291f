#!/bin/bash
# login.sh HOME NAME ADDRESS INTERFACE - what the login node runs, in network, mount and UTS namespaces of its own.
# The bridge to the nodes exists in its network namespace only, and is gone with it.
set -euo pipefail
home=$1 name=$2 address=$3 interface=$4
hostname "$name"
mount --bind "$home/etc/hosts" /etc/hosts
mount --bind "$home/etc/nsswitch.conf" /etc/nsswitch.conf
mount -t tmpfs -o size=64m tmpfs "$home/disk"
# One that can be frozen, where this machine has loop devices.
truncate -s 128m "$home/freezer.image"
{ mkfs.ext4 -q -m 0 "$home/freezer.image" && mount -o loop "$home/freezer.image" "$home/freezer"; } || true
ip link set lo up
# With an address of its own: it would take that of a port, another when that node loses power, and
# be unreachable to the others until they notice.
ip link add "$interface" address 02:00:00:00:00:fe type bridge
ip addr add "$address/24" dev "$interface"
ip link set "$interface" up
touch "$home/run/login.ready"
exec sleep infinity
