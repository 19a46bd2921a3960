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
    echo "$1" | grep -qxE '[0-9]+(\.[0-9]+)?' || fail "$1 is not a number"
}

setting() {
    cat "/run/lab.$1.$2" 2>/dev/null || echo 0
}

is_zero() {
    ! echo "$1" | grep -q '[1-9]'
}

# shape DEVICE RATE LOSS: the qdiscs for both; kept where they are, so that queued packets stay
shape() {
    old=$(setting "$1" kinds)
    kinds=
    is_zero "$3" || kinds=loss
    is_zero "$2" || kinds=${kinds}rate
    verb=change
    if [ "$kinds" != "$old" ]; then
        verb=add
        [ "$old" = 0 ] || [ -z "$old" ] || tc qdisc del dev "$1" root
    fi
    # 8 ms at the rate: the guest's timer must not limit it
    burst=$((${2%.*} * 1000))
    [ $burst -ge 65536 ] || burst=65536
    place=root
    case $kinds in *loss*)
        tc qdisc $verb dev "$1" root handle 1: netem loss "$3%" limit 10000 || return 1
        place="parent 1:1"
        ;;
    esac
    case $kinds in *rate*)
        tc qdisc $verb dev "$1" $place handle 10: tbf rate "$2mbit" burst $burst limit 4mb || return 1
        ;;
    esac
    echo "$kinds" >"/run/lab.$1.kinds"
    echo "$2" >"/run/lab.$1.rate"
    echo "$3" >"/run/lab.$1.loss"
}

chosen() {
    if [ $# = 2 ]; then device "$1" "$2"; else devices; fi
}

command=$1
[ $# -gt 0 ] && shift
case $command:$# in
down:2)
    ip link set "$(device "$1" "$2")" down
    ;;
up:2)
    name=$(device "$1" "$2") || exit 1
    ip link set "$name" up
    ip -batch "$(own)/up.$name"
    ;;
pause:3)
    name=$(device "$1" "$2") || exit 1
    number "$3"
    before=$(setting "$name" loss)
    shape "$name" "$(setting "$name" rate)" 100
    sleep "$3"
    shape "$name" "$(setting "$name" rate)" "$before"
    ;;
loss:1 | loss:3)
    percent=$1
    number "$percent"
    shift
    names=$(chosen "$@") || exit 1
    for name in $names; do shape "$name" "$(setting "$name" rate)" "$percent" || exit 1; done
    ;;
rate:1 | rate:3)
    rate=$1
    number "$rate"
    shift
    names=$(chosen "$@") || exit 1
    for name in $names; do shape "$name" "$rate" "$(setting "$name" loss)" || exit 1; done
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
    : >"/mnt/kill-machine-$1"
    ;;
*) usage ;;
esac
