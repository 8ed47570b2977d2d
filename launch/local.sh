#!/usr/bin/env bash
# Train on this one host, with every device JAX finds:
#
#     launch/local.sh CONFIG [--field value ...]
#
# The arguments go to `rlvr-jax train` as they are. A run that was told to stop (SIGTERM, as before a preemption) saves
# a checkpoint and exits with 143. It is then started again with the same arguments and goes on from that checkpoint,
# unless it was this script that was told: SIGTERM or Ctrl-C here is passed on, and the run's exit code is the script's.
#
# Dry run of a sharded config without accelerators, on 8 devices that share this host's cores:
#
#     JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 launch/local.sh CONFIG --mesh.fsdp 4 --steps 2 --run_dir runs/dry
set -euo pipefail

readonly preempted=143
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [[ $# -eq 0 || $1 == -* ]]; then
    echo "usage: launch/local.sh CONFIG [--field value ...]" >&2
    exit 2
fi
if [[ -x $root/.venv/bin/rlvr-jax ]]; then
    train=("$root/.venv/bin/rlvr-jax" train "$@")
elif command -v rlvr-jax >/dev/null; then
    train=(rlvr-jax train "$@")
else
    echo "launch/local.sh: no rlvr-jax on this host: run \`make setup\` in $root, or pip install rlvr_jax." >&2
    exit 127
fi

told_to_stop=false
child=
# A background child of a script ignores SIGINT, so Ctrl-C reaches the run as SIGTERM.
trap 'told_to_stop=true; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' INT TERM

while ! $told_to_stop; do
    "${train[@]}" &
    child=$!
    # Told between the start and the line above: the trap did not know whom to tell.
    ! $told_to_stop || kill -TERM "$child" 2>/dev/null || true
    code=0
    wait "$child" || code=$?
    while [[ -n $(jobs -pr) ]]; do # the signal ended the wait, the run is still saving
        code=0
        wait "$child" || code=$?
    done
    if [[ $code -ne $preempted ]] || $told_to_stop; then
        exit "$code"
    fi
    echo "launch/local.sh: the run was preempted; it goes on from its last checkpoint." >&2
    sleep 1
done
exit "$preempted"
