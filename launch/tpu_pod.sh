#!/usr/bin/env bash
# Train on a Cloud TPU slice of one or many hosts, got by a queued resource. From this checkout:
#
#     launch/tpu_pod.sh create  NAME TYPE [flag of gcloud ...]   ask for the slice, and wait until it is there
#     launch/tpu_pod.sh install NAME                             copy this checkout to all hosts, and install it there
#     launch/tpu_pod.sh run     NAME CONFIG [--field value ...]  start launch/local.sh on all hosts, in the background
#     launch/tpu_pod.sh tail    NAME [WORKER]                    follow the log of one host, the first if not said
#     launch/tpu_pod.sh stop    NAME                             let the run save a checkpoint and end
#     launch/tpu_pod.sh delete  NAME                             give the slice back
#
#     launch/tpu_pod.sh train   NAME TYPE [flag of gcloud ...] -- CONFIG [--field value ...]
#
# `train` does the first three and watches until the run has ended; its exit code is the run's. Where the slice was
# preempted (it has to be deleted and asked for anew) or its hosts were restarted, it does them again, and the run goes on
# from its last checkpoint. It may be interrupted and started again at any time.
#
#     launch/tpu_pod.sh train mine v5litepod-16 --spot -- configs/quickstart.yaml --run_dir /srv/shared/quickstart
#
# TYPE is an accelerator type, such as v5litepod-16, v5p-128 or v6e-256. Project and zone are those of `gcloud config`.
# The run directory and the model have to be on a file system that all hosts share: with SHARED=HOST:/PATH, an NFS share
# (Filestore, for instance), `install` mounts it as /srv/shared. With --dry-run before the command, what would be
# run is printed. POLL_SECONDS, 60 if not set, is how often `create` and `train` look.
set -euo pipefail

readonly preempted=143 lost=75 python=3.12 uv=0.13.9
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
poll=${POLL_SECONDS:-60}

fail() { # CODE MESSAGE
    echo "launch/tpu_pod.sh: $2" >&2
    exit "$1"
}

dry_run=false
if [[ ${1:-} == --dry-run ]]; then
    dry_run=true
    shift
fi
command=${1:-}
name=${2:-}
case $command in
create | run | train) least=3 ;;
install | tail | stop | delete) least=2 ;;
*) least=99 ;;
esac
if [[ $# -lt $least || $name == -* ]]; then
    sed -n '/^#  /s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
shift 2
$dry_run || command -v gcloud >/dev/null || fail 127 "no gcloud on this machine: install the Google Cloud CLI, and run \`gcloud init\`."

tpus() { # WORD ...: a command of gcloud, or what it would be
    if $dry_run; then
        printf '%q ' gcloud compute tpus "$@"
        echo
    else
        gcloud compute tpus "$@"
    fi
}

on() { # WORKER COMMAND
    tpus tpu-vm ssh "$name" --worker="$1" --command="$2"
}

state() { # of the queued resource: ACTIVE, SUSPENDED, ...; nothing where there is none
    if $dry_run; then
        echo ACTIVE
    else
        gcloud compute tpus queued-resources describe "$name" --format="value(state.state)" 2>/dev/null || true
    fi
}

request() { # TYPE [FLAG ...]
    local runtime
    case $1 in
    v5lite*) runtime=v2-alpha-tpuv5-lite ;;
    v5p*) runtime=v2-alpha-tpuv5 ;;
    v6e*) runtime=v2-alpha-tpuv6e ;;
    *) runtime=tpu-ubuntu2204-base ;;
    esac
    # Of a flag that is given twice the last one counts, so --runtime-version among the user's flags wins.
    tpus queued-resources create "$name" --node-id="$name" --accelerator-type="$1" --runtime-version="$runtime" "${@:2}"
}

create() { # TYPE [FLAG ...]
    local now
    request "$@"
    while now=$(state) && [[ $now != ACTIVE ]]; do
        [[ $now != FAILED && $now != SUSPENDED ]] || fail 1 "the queued resource $name is $now: delete it and create it again."
        sleep "$poll"
    done
}

install() {
    local archive mount=
    archive=$(mktemp -d)/rlvr_jax.tar.gz
    (cd "$root" && git ls-files -z --cached --others --exclude-standard | tar --null -T - -czf "$archive")
    if [[ -n ${SHARED:-} ]]; then
        mount="sudo apt-get install -qq -y nfs-common && sudo mkdir -p /srv/shared && { mountpoint -q /srv/shared || sudo mount -t nfs $(printf %q "$SHARED") /srv/shared; } &&"
    fi
    tpus tpu-vm scp "$archive" "$name:" --worker=all
    rm -r "$(dirname "$archive")"
    # The hosts' own Python is older than ours.
    on all "$mount mkdir -p rlvr_jax && tar -xzf rlvr_jax.tar.gz -C rlvr_jax && cd rlvr_jax && python3 -m pip install --quiet --user uv==$uv && PATH=~/.local/bin:\$PATH && uv venv --quiet --allow-existing --python $python .venv && uv pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable '.[tpu]'"
}

run() { # CONFIG ...
    # Where the run is going on, its lock is taken, and nothing is started.
    # shellcheck disable=SC2016 # the hosts expand it
    local body='rm -f train.status; launch/local.sh "$@" >>train.log 2>&1; echo $? >train.status'
    on all "cd rlvr_jax && (setsid nohup flock --nonblock train.lock bash -c $(printf %q "$body") run $(printf '%q ' "$@") </dev/null >/dev/null 2>&1 &)"
}

progress() { # of all hosts: running, again, done or the exit code of one that failed; nothing where they do not answer
    local each worst='' ask='cd rlvr_jax 2>/dev/null || exec echo none; if ! flock --nonblock train.lock true; then echo running; else cat train.status 2>/dev/null || echo none; fi'
    for each in $(on all "$ask" || true); do
        case $each in
        running) worst=running && break ;;
        none | "$preempted" | "$lost") [[ $worst =~ ^[0-9]+$ ]] || worst=again ;;
        0) worst=${worst:-done} ;;
        *) [[ ! $each =~ ^[0-9]+$ ]] || worst=$each ;;
        esac
    done
    echo "$worst"
}

delete() {
    tpus queued-resources delete "$name" --force --quiet
}

train() { # TYPE [FLAG ...] -- CONFIG ...
    local flags=() now code failed=
    while [[ $# -gt 0 && $1 != -- ]]; do
        flags+=("$1")
        shift
    done
    [[ ${#flags[@]} -gt 0 && $# -gt 1 ]] || fail 2 "train needs a type and a config: train NAME TYPE [flag of gcloud ...] -- CONFIG [--field value ...]"
    shift
    if $dry_run; then
        request "${flags[@]}" && install && run "$@"
        return
    fi
    while true; do
        now=$(state)
        case $now in
        ACTIVE)
            code=$(progress)
            case $code in
            running | "") failed= ;; # no answer: the host may be about to be taken away
            again) install && run "$@" ;;
            done) return 0 ;;
            *) # a slice that is being taken away may look like this, too, but not for long
                [[ $failed != "$code" ]] || fail "$code" "the run failed with exit code $code: see \`launch/tpu_pod.sh tail $name\`."
                failed=$code
                ;;
            esac
            ;;
        "") request "${flags[@]}" ;;
        FAILED | SUSPENDED)
            echo "launch/tpu_pod.sh: the slice is $now; it is asked for anew, and the run goes on from its last checkpoint." >&2
            delete
            ;;
        esac
        sleep "$poll"
    done
}

case $command in
tail) on "${1:-0}" "tail -n 100 -F rlvr_jax/train.log" ;;
stop) on all "pkill -TERM -f '^bash launch/local.sh'" ;;
*) "$command" "$@" ;;
esac
