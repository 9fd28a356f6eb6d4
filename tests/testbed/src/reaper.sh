# Removes everything that belongs to one lab, whose folder is the first argument.
#
# It waits for the end of its standard input, a pipe that only the lab's owner holds. The kernel
# closes it whatever ends the owner: a normal drop, a panic, Ctrl-C, SIGKILL.
trap '' HUP INT TERM
lab=$1
cat >/dev/null
[ -f "$lab/lock" ] || exit 0

# Everything that the lab starts inherits its mark, also what those processes start.
marked() { grep -lzxF "IMAGECACHE_TESTBED=$lab" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }
# Containers have an environment of their own, but a marked shim is their ancestor.
family() {
    for pid; do
        echo "$pid"
        family $(cat /proc/"$pid"/task/*/children 2>/dev/null)
    done
}

# A container's control group has its ID, and stays when nobody deletes the container in an orderly way.
groups() {
    for task in "$lab"/*/run/io.containerd.runtime.v2.task/k8s.io/*; do
        [ -d "$task" ] && find /sys/fs/cgroup -depth -type d -path "*/k8s.io/${task##*/}*" 2>/dev/null
    done
}

tries=0
while pids=$(marked); [ -n "$pids" ] && [ $((tries += 1)) -le 100 ]; do
    # Stopped first: nobody may start another child between the look and the kill.
    kill -STOP $pids 2>/dev/null
    kill -KILL $(family $pids) 2>/dev/null
    sleep 0.02
done

# Mounts and addresses lived in the namespaces of those processes, and went with them.
bridge=$(cat "$lab/bridge" 2>/dev/null)
if [ -n "$bridge" ]; then
    # One end is enough, but the kernel takes its time to drop the end in a dead namespace.
    for link in $(ip -o link show master "$bridge" 2>/dev/null | cut -d: -f2 | cut -d@ -f1); do
        ip link del "$link" 2>/dev/null
    done
    ip link del "$bridge" 2>/dev/null
fi

tries=0
while left=$(groups); [ -n "$left" ] && [ $((tries += 1)) -le 50 ]; do
    rmdir $left 2>/dev/null || sleep 0.02
done
# Their parent belongs to every containerd of the machine; it goes with the last one.
rmdir /sys/fs/cgroup/k8s.io /sys/fs/cgroup/*/k8s.io 2>/dev/null

tries=0
while rm -rf --one-file-system "$lab" 2>/dev/null; [ -e "$lab" ]; do
    if [ $((tries += 1)) -gt 50 ]; then
        echo "$lab: could not be removed" >&2
        exit 1
    fi
    sleep 0.05
done
