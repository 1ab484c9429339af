#!/bin/sh
# PID 1 of the machine: makes the system a program expects, runs the command,
# says how it ended, and powers off. The shell waits for every child, so
# orphans are reaped while the command runs.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs /run
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=0620,ptmxmode=0666,gid=5 devpts /dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
	echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control
done

# A real system has the node of loop devices from the start, and a console with a size.
modprobe loop
stty cols 120 rows 40

# QEMU's user network: an address behind its translation, and its DNS.
hostname machine
ip link set lo up
modprobe virtio_net
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
echo 'nameserver 10.0.2.3' > /etc/resolv.conf

cd /
sh /machine/command
echo "ATOLL-MACHINE-EXIT $?"
sync
/machine/busybox poweroff -f
