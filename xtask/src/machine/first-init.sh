#!/bin/busybox sh
# From the initramfs to the root file system on the first disk.
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs devtmpfs /dev
@LOAD@
mount -t ext4 -o noatime /dev/vda /root || { echo 'the root disk cannot be mounted'; poweroff -f; }
mount -t ext4 -o noatime /dev/vdb /root/machine || { echo 'the payload disk cannot be mounted'; poweroff -f; }
mount -o move /dev /root/dev
exec switch_root /root /bin/sh /machine/init
