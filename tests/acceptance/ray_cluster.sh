#!/bin/bash
# A Ray cluster of two nodes on one machine, and a command that uses it:
#
#     unshare -rnpf --mount-proc --kill-child bash ray_cluster.sh PYTHON FOLDER COMMAND...
#
# In namespaces of its own nothing listens outside, and everything ends with the first process.
# FOLDER: short, as Unix sockets lie in it. Ports are fixed, since a busy machine loses agents that look for some.
set -e
python=$1 folder=$2
ip link set lo up
ip addr add 10.77.0.1/32 dev lo
ip addr add 10.77.0.2/32 dev lo
ip addr add 10.77.0.3/32 dev lo
ip addr add 10.77.0.4/32 dev lo
export HOME=$folder RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 RAY_enable_metrics_collection=0 RAY_local_fs_capacity_threshold=0.999
export RAY_worker_niceness=0 RAY_agent_register_timeout_ms=120000 RAY_health_check_initial_delay_ms=2000 RAY_health_check_period_ms=1000
export RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=5

node() { # NAME PORTS OPTIONS...
  echo "$python" -m ray.scripts.scripts start --node-ip-address="10.77.0.$1" "${@:3}" --num-cpus=1 --num-gpus=0 \
    --object-store-memory=100000000 --include-log-monitor=false --disable-usage-stats \
    --node-manager-port=${2}0 --object-manager-port=${2}1 --runtime-env-agent-port=${2}2 \
    --dashboard-agent-grpc-port=${2}3 --dashboard-agent-listen-port=${2}4 --metrics-export-port=${2}5 \
    --min-worker-port=2${1}000 --max-worker-port=2${1}099
}
start() { # COMMAND; status 75 where it fails, as Ray gives its parts 30 s to start, which is little on a busy machine
  $1 >"$folder/start.log" 2>&1 || { cat "$folder/start.log"; exit 75; }
}
start "$(node 1 638 --head --port=6379 --include-dashboard=false --temp-dir="$folder/ray")"
start "$(node 2 648 --address=10.77.0.1:6379)"
node 3 658 --address=10.77.0.1:6379 >"$folder/join.sh"  # for a node that joins later
mkdir -p "$folder/without" && echo 'raise ModuleNotFoundError("no rolloutlab here")' >"$folder/without/rolloutlab.py"
echo "export PYTHONPATH=$folder/without; $(node 4 668 --address=10.77.0.1:6379)" >"$folder/without.sh"
set +e
"${@:3}"
