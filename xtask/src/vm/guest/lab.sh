#!/bin/sh
# Changes the lab from inside while a job runs. In a run with two machines, a machine changes its own devices only,
# and RANK is its own number.
usage() {
    cat >&2 <<END
usage: /mnt/lab down RANK RAIL              take the link down
       /mnt/lab up RANK RAIL                bring it back, with its routes and neighbors
       /mnt/lab pause RANK RAIL SECONDS     lose all it sends for a while, then as before
       /mnt/lab loss PERCENT [RANK RAIL]    lose this share of the packets sent (0: none)
       /mnt/lab rate MBIT [RANK RAIL]       send no faster (0: no limit)
       /mnt/lab shape MBIT PERCENT          both, for all devices
       /mnt/lab unpin                       receive on whatever processor: sooner, but packets may overtake each other
       /mnt/lab pin                         receive on one processor a device, as at the start
       /mnt/lab counters [RANK RAIL]        print what the RDMA devices have counted
       /mnt/lab kill-machine MACHINE        end a machine (0 or 1) as if its power had failed
END
    exit 2
}

fail() {
    echo "lab: $*" >&2
    exit 1
}

# device RANK RAIL
device() {
    [ -e "/sys/class/net/r$1d$2" ] || fail "there is no device r$1d$2; there are: $(devices | tr '\n' ' ')"
    echo "r$1d$2"
}

devices() {
    ls /sys/class/net | grep -E '^r[0-9]+d[0-9]+$'
}

# The files of this machine's lab.
own() {
    sed 's|.*rma.machine=\([0-9]*\).*|/mnt/vm\1|' /proc/cmdline
}

# number TEXT: refuses what tc would misread
number() {
    case $1 in
    '' | . | *[!0-9.]* | *.*.*) fail "$1 is not a number" ;;
    esac
}

is_zero() {
    case $1 in *[1-9]*) return 1 ;; esac
}

# recall DEVICE: what it was shaped to last, as $rate, $loss and $kinds (of queueing disciplines)
recall() {
    rate=0 loss=0 kinds=none
    [ -e "/run/lab.$1" ] && read -r rate loss kinds <"/run/lab.$1"
}

# shape DEVICE RATE LOSS: prints the batch for tc. Disciplines stay where they are if they can, with the packets in them.
shape() {
    recall "$1"
    new=none
    is_zero "$3" || new=loss
    is_zero "$2" || case $new in none) new=rate ;; loss) new=loss+rate ;; esac
    verb=change
    if [ "$new" != "$kinds" ]; then
        verb=add
        [ "$kinds" = none ] || echo "qdisc del dev $1 root"
    fi
    # 8 ms at the rate: the guest's timer must not limit it.
    burst=$((${2%.*} * 1000))
    [ $burst -ge 65536 ] || burst=65536
    place=root
    case $new in loss*)
        echo "qdisc $verb dev $1 root handle 1: netem loss $3% limit 10000"
        place="parent 1:1"
        ;;
    esac
    case $new in *rate)
        echo "qdisc $verb dev $1 $place handle 10: tbf rate $2mbit burst $burst limit 4mb"
        ;;
    esac
    echo "$2 $3 $new" >"/run/lab.$1"
}

# shape_all RATE LOSS DEVICE..: a word "same" keeps what a device has
shape_all() {
    set_rate=$1 set_loss=$2
    shift 2
    for name in "$@"; do
        recall "$name"
        [ "$set_rate" = same ] || rate=$set_rate
        [ "$set_loss" = same ] || loss=$set_loss
        shape "$name" "$rate" "$loss"
    done | tc -batch -
}

# chosen [RANK RAIL]
chosen() {
    if [ $# = 2 ]; then device "$1" "$2"; else devices; fi
}

command=$1
[ $# -gt 0 ] && shift
case $command:$# in
down:2)
    name=$(device "$1" "$2") || exit 1
    ip link set "$name" down
    ;;
up:2)
    name=$(device "$1" "$2") || exit 1
    ip link set "$name" up && ip -batch "$(own)/up.$name"
    ;;
pause:3)
    name=$(device "$1" "$2") || exit 1
    number "$3"
    recall "$name"
    before=$loss
    shape_all same 100 "$name" && sleep "$3" && shape_all same "$before" "$name"
    ;;
loss:1 | loss:3)
    percent=$1
    number "$percent"
    shift
    names=$(chosen "$@") || exit 1
    shape_all same "$percent" $names
    ;;
rate:1 | rate:3)
    mbit=$1
    number "$mbit"
    shift
    names=$(chosen "$@") || exit 1
    shape_all "$mbit" same $names
    ;;
shape:2)
    number "$1"
    number "$2"
    shape_all "$1" "$2" $(devices)
    ;;
pin:0 | unpin:0)
    while read -r name mask; do
        [ "$command" = pin ] || mask=0
        echo "$mask" >"/sys/class/net/$name/queues/rx-0/rps_cpus" || exit 1
    done <"$(own)/lab.queues"
    ;;
counters:0 | counters:2)
    names=$(chosen "$@") || exit 1
    for name in $names; do rdma statistic show link "x${name#r}"; done
    ;;
kill-machine:1)
    case $1 in 0 | 1) : >"/mnt/kill-machine-$1" ;; *) fail "there is no machine $1; there are 0 and, in a run with two, 1" ;; esac
    ;;
*) usage ;;
esac
