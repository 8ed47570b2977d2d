#!/usr/bin/env bash
# Train on this one host, with every device JAX finds:
#
#     launch/local.sh [--processes N] CONFIG [--field value ...]
#
# The arguments go to `rlvr-jax train` as they are. With --processes, N processes train one run together, and each gets
# an equal share of the host's devices: of the GPUs (those of CUDA_VISIBLE_DEVICES, or all), or of JAX_NUM_CPU_DEVICES
# (one each without it). A TPU host has one process for all its chips.
#
# A run that was told to stop (SIGTERM, as before a preemption) saves a checkpoint and exits with 143. It is then started
# again with the same arguments and goes on from that checkpoint, unless it was this script that was told: SIGTERM or
# Ctrl-C here is passed on, and the run's exit code is the script's. A process that fails ends the others, and its exit
# code is the run's.
#
# Dry run of a sharded config without accelerators, on 8 devices that share this host's cores:
#
#     JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 launch/local.sh CONFIG --mesh.fsdp 4 --steps 2 --run_dir runs/dry
set -euo pipefail

readonly preempted=143 lost=75
readonly usage="usage: launch/local.sh [--processes N] CONFIG [--field value ...]"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { # CODE MESSAGE
    echo "$2" >&2
    exit "$1"
}

processes=1
if [[ ${1:-} == --processes ]]; then
    processes=${2:-}
    [[ $processes =~ ^[1-9][0-9]*$ ]] || fail 2 "launch/local.sh: --processes is '$processes', and must be a number from 1 on."
    shift 2
fi
[[ $# -gt 0 && $1 != -* ]] || fail 2 "$usage"

if [[ -x $root/.venv/bin/rlvr-jax ]]; then
    train=("$root/.venv/bin/rlvr-jax" train "$@")
elif command -v rlvr-jax >/dev/null; then
    train=(rlvr-jax train "$@")
else
    fail 127 "launch/local.sh: no rlvr-jax on this host: run \`make setup\` in $root, or pip install rlvr_jax."
fi

share() { # COUNT WHAT: how many of them each process gets
    (($1 % processes == 0)) || fail 2 "launch/local.sh: $1 $2 cannot be shared equally by $processes processes: choose a number that divides it."
    echo $(($1 / processes))
}

gpus=()
if [[ $processes -gt 1 && ${JAX_PLATFORMS:-} != cpu ]]; then
    if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
        IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
    elif command -v nvidia-smi >/dev/null; then
        while read -r gpu; do gpus+=("$gpu"); done < <(nvidia-smi --query-gpu=index --format=csv,noheader)
    fi
fi
gpu_share=$(share ${#gpus[@]} GPUs)
cpu_share=$(share "${JAX_NUM_CPU_DEVICES:-0}" "devices of JAX_NUM_CPU_DEVICES")

start() { # I: start process I of the run in the background
    if [[ $processes -eq 1 ]]; then
        "${train[@]}" &
        return
    fi
    local environment=()
    [[ $gpu_share -eq 0 ]] || environment+=("CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${gpus[*]:$1*gpu_share:gpu_share}")")
    [[ $cpu_share -eq 0 ]] || environment+=("JAX_NUM_CPU_DEVICES=$cpu_share")
    env ${environment[@]+"${environment[@]}"} "${train[@]}" --coordinator "127.0.0.1:$port" --processes "$processes" --process "$1" &
}

free_port() { # one that nothing listens on, below those that systems give to clients
    local port
    while port=$((10000 + RANDOM % 20000)) && (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

told=0   # how often this script was told to stop
passed=0 # how often the run was
children=()
# A background child of a script ignores SIGINT, so Ctrl-C reaches the run as SIGTERM. It is passed on by `finish`, which
# knows all children, each time once: a run that is told twice does not save.
trap 'told=$((told + 1))' INT TERM

tell() { # SIGNAL: to each child
    local child
    for child in "${children[@]}"; do kill "-$1" "$child" 2>/dev/null || true; done
}

# Waits for all children. `code` is that of the first to end with another than 0, or 0: of those that only lost another
# process it is the last choice.
finish() {
    local running child ended deadline=0 ended_them=false
    code=0
    while [[ ${#children[@]} -gt 0 ]]; do
        for (( ; passed < told; passed++)); do tell TERM; done
        running=()
        for child in "${children[@]}"; do
            if kill -0 "$child" 2>/dev/null; then
                running+=("$child")
                continue
            fi
            ended=0
            wait "$child" || ended=$?
            [[ $ended -eq 0 || ($code -ne 0 && $code -ne $lost) ]] || code=$ended
        done
        children=(${running[@]+"${running[@]}"})
        [[ ${#children[@]} -gt 0 ]] || return 0
        if [[ $code -ne 0 ]]; then
            # They cannot go on without the one that ended. Where it failed, they may wait for it for ever. Where it was
            # told to stop, they are saving as it did, and would not survive being told twice.
            [[ $deadline -gt 0 ]] || deadline=$((SECONDS + (code == preempted ? 60 : 10)))
            if [[ $code -ne $preempted && $code -ne $lost && $ended_them == false ]]; then
                ended_them=true
                tell TERM
            fi
            if [[ $SECONDS -ge $deadline ]]; then
                echo "launch/local.sh: one process ended with $code, and ${#children[@]} did not end after it: killed." >&2
                tell KILL
            fi
        fi
        sleep 0.1
    done
}

while [[ $told -eq 0 ]]; do
    port=$(free_port)
    for ((i = 0; i < processes; i++)); do
        start "$i"
        children+=($!)
    done
    finish
    if [[ $code -ne $preempted || $told -gt 0 ]]; then
        exit "$code"
    fi
    echo "launch/local.sh: the run was preempted; it goes on from its last checkpoint." >&2
    sleep 1
done
exit "$preempted"
