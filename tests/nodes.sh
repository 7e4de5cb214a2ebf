#!/bin/bash
# For the end-to-end tests of clusters, which source it after lib.sh: members of etcd, a fence agent, and the commands of a node, whose
# state directory is $WORK/NAME.
at() { local node=$1; shift; "$ARDEN" --state "$WORK/$node" "$@"; }
owns() { at "$1" pool list --json | grep -q '"state": *"owned"'; }

# etcd_member NAME PORT PEER_PORT INITIAL_CLUSTER: starts it on ETCD_IP (127.0.0.1), data in $WORK/NAME. Sets etcd_pid.
etcd_member() {
  local here=http://${ETCD_IP:-127.0.0.1}:$2 peers=http://${ETCD_IP:-127.0.0.1}:$3
  etcd --name "$1" --data-dir "$WORK/$1" --listen-client-urls "$here" --advertise-client-urls "$here" --listen-peer-urls "$peers" \
    --initial-advertise-peer-urls "$peers" --initial-cluster "$4" --log-level error >>"$WORK/$1.log" 2>&1 &
  etcd_pid=$!
}
etcd_healthy() { ETCDCTL_API=3 etcdctl --endpoints "http://${ETCD_IP:-127.0.0.1}:$1" endpoint health; } # etcd_healthy PORT
# An etcd of one member. Sets etcd, its URL, and etcd_pid.
etcd_alone() {
  local port peer; port=$(free_port) peer=$(free_port)
  etcd=http://${ETCD_IP:-127.0.0.1}:$port
  etcd_member etcd "$port" "$peer" "etcd=http://${ETCD_IP:-127.0.0.1}:$peer"
  until_true 20 etcd_healthy "$port" || { cat "$WORK/etcd.log"; fail "etcd does not start"; }
}

# Writes $WORK/agent: a fence agent for nodes of this machine, whose process ids are in DIR/NODE.pid. With DIR/broken it fails.
fence_agent() {
  cat >"$WORK/agent" <<'A'
#!/bin/bash
# Options are lines on standard input.
while IFS= read -r line; do case $line in action=*) action=${line#*=} ;; nodename=*) node=${line#*=} ;; dir=*) dir=${line#*=} ;; esac; done
[[ ! -e $dir/broken ]] || exit 1
pid=$(cat "$dir/$node.pid") || exit 1
alive() { [[ -e /proc/$pid ]] && ! grep -q '^State:.*Z' "/proc/$pid/status"; }
case $action in
  off) echo "$node" >>"$dir/fenced"; kill -9 "$pid" 2>/dev/null; for _ in {1..200}; do alive || exit 0; sleep 0.01; done; exit 1 ;;
  status) if alive; then exit 0; else exit 2; fi ;;
  *) exit 1 ;;
esac
A
  chmod 755 "$WORK/agent"
}
