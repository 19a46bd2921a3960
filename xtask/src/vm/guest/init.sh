#!/bin/sh
# The first process of the guest: mounts the host's files, makes the lab, runs the job, and leaves its exit status on the share.
# It never ends by itself when all is well: the host stops the machine once every machine has its status.

# Words of the kernel's command line: rma.machine=NUMBER rma.modules=NAME,NAME
die() {
    echo "init: $*" >/dev/console
    reboot -f
}

# With the host's shell: busybox would take its own applet for a program of the host.
on_host() {
    chroot /host /bin/sh -c "PATH=/usr/sbin:/usr/bin:/sbin:/bin; $1" </dev/null >/dev/console 2>&1
}

# Until then the kernel drops what is sent.
is_up() {
    looks=0
    while [ $looks -lt 250 ]; do
        read -r state <"/sys/class/net/$1/operstate"
        [ "$state" = up ] && return
        looks=$((looks + 1))
        sleep 0.02
    done
    return 1
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for word in $(cat /proc/cmdline); do
    case $word in
    rma.machine=*) machine=${word#rma.machine=} ;;
    rma.modules=*) modules=$(echo "${word#rma.modules=}" | sed 's/,/ /g') ;;
    esac
done

# Launchers name a machine by it.
echo "machine$machine" >/proc/sys/kernel/hostname

# Before any device: ranks of one machine send to each other's addresses, which are all local; and only IPv4 is used.
for which in all default; do
    echo 0 >/proc/sys/net/ipv4/conf/$which/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$which/accept_local
done
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
for module in virtio_pci 9pnet_virtio 9p overlay $modules; do
    modprobe "$module" || die "cannot load module $module"
done

options=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o "ro,cache=loose,$options" host /host || die "cannot mount the host's files"
mount -t 9p -o "cache=none,$options" share /host/mnt || die "cannot mount the share"
for folder in proc sys dev; do
    mount -o bind "/$folder" "/host/$folder" || die "cannot mount /$folder"
done
mkdir -p /host/dev/shm /host/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /host/dev/shm
mount -t devpts devpts /host/dev/pts
mount -t tmpfs tmpfs /host/run
mount -t tmpfs -o mode=1777 tmpfs /host/var/tmp
# The host's temporary files can be read; what is written there stays in the guest.
mount -t tmpfs tmpfs /scratch
mkdir /scratch/upper /scratch/work
chmod 1777 /scratch/upper
mount -t overlay -o lowerdir=/host/tmp,upperdir=/scratch/upper,workdir=/scratch/work overlay /host/tmp ||
    die "cannot mount /tmp"

own=/host/mnt/vm$machine
if [ -e "$own/lab.names" ]; then
    while read -r address name; do
        for device in /sys/class/net/*; do
            [ "$(cat "$device/address")" = "$address" ] && ip link set "${device##*/}" name "$name"
        done
    done <"$own/lab.names"
fi
ip link set lo up
if [ -e "$own/lab.ip" ]; then
    on_host "ip -batch /mnt/vm$machine/lab.ip" || die "cannot make the lab's networks"
    on_host "rdma -b /mnt/vm$machine/lab.rdma" || die "cannot make the lab's RDMA devices"
    while read -r device _; do
        is_up "$device" || die "device $device has no link after 5 s"
    done <"$own/lab.queues"
    on_host ". /mnt/vm$machine/lab.shape" || die "cannot shape the lab's traffic"
fi

# Through pipes, as a program expects; the share is written by cat alone.
mkfifo /out /err
cat /out >"$own/stdout" &
out=$!
cat /err >"$own/stderr" &
err=$!
setsid chroot /host /bin/sh "/mnt/vm$machine/job" </dev/null >/out 2>/err
status=$?
# What the job left in the background goes with it, and with it the last writers of the pipes.
strays=$(ls -l /proc/[0-9]*/root 2>/dev/null | sed -n 's|.* /proc/\([0-9]*\)/root -> /host$|\1|p')
[ -n "$strays" ] && kill -9 $strays 2>/dev/null
wait $out $err
echo $status >"$own/status.new"
mv "$own/status.new" "$own/status"
while :; do sleep 3600; done
