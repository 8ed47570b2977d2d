"""launch/tpu_pod.sh around a stand-in for `gcloud` that runs what it sends to a host; the JobSet and the Dockerfile."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "launch"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

# ---- TPU slices --------------------------------------------------------------------------------------------------

GCLOUD = r"""
printf '%s\n' "$(printf '%q ' "$@")" >> "$FOLDER/calls"
command=
for word; do [[ $word != --command=* ]] || command=${word#--command=}; done
case "$3 $4" in
"queued-resources describe") [[ ! -e $FOLDER/state ]] || cat "$FOLDER/state" ;;
"queued-resources create") echo ACTIVE > "$FOLDER/state" ;;
"queued-resources delete") rm -r "$FOLDER/state" "$FOLDER/host" && mkdir "$FOLDER/host" ;;
"tpu-vm scp") cp "$5" "$FOLDER/host" ;;
"tpu-vm ssh") cd "$FOLDER/host" && exec bash -c "$command" ;;
esac
"""
PYTHON = 'echo "$@" >> "$FOLDER/installs"'
UV = 'echo "$@" >> "$FOLDER/installs"'


def program(path, body):
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def pod(tmp_path):
    """`pod(*words)`: run a copy of launch/tpu_pod.sh in a small checkout; its first host is the folder `host`."""
    checkout = tmp_path / "checkout"
    (checkout / "launch").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "host").mkdir()
    for name in ("tpu_pod.sh", "local.sh"):
        shutil.copy(LAUNCH / name, checkout / "launch")
    (checkout / ".gitignore").write_text("runs/\n")
    (checkout / "runs").mkdir()
    (checkout / "runs" / "large").write_text("")
    subprocess.run(["git", "init", "--quiet", checkout], check=True)
    for name, body in {"gcloud": GCLOUD, "python3": PYTHON, "uv": UV}.items():
        program(tmp_path / "bin" / name, body)

    def run(*words, **variables):
        return subprocess.run(
            [checkout / "launch" / "tpu_pod.sh", *words],
            env=os.environ
            | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "FOLDER": str(tmp_path), "POLL_SECONDS": "0.1"}
            | variables,
            capture_output=True,
            text=True,
            timeout=30,
        )

    run.folder = tmp_path
    run.calls = lambda: [shlex.split(line) for line in (tmp_path / "calls").read_text().splitlines()]
    return run


def verbs(pod):
    """What gcloud was asked to do, without the questions."""
    asked = [(call[3], call[-1]) for call in pod.calls() if call[3] != "describe"]
    return [verb for verb, last in asked if "train.lock true" not in last]


def test_a_preempted_slice_is_asked_for_anew_and_the_run_goes_on(pod):
    program(
        pod.folder / "bin" / "rlvr-jax",
        """
        echo "$@" >> "$FOLDER/runs"
        [[ $(wc -l < "$FOLDER/runs") -eq 1 ]] || exit 0
        echo SUSPENDED > "$FOLDER/state"
        exit 134
        """,
    )
    done = pod("train", "mine", "v6e-256", "--spot", "--", "c.yaml", "--task.name", "a b", "--run_dir", "/r")
    assert (done.returncode, (pod.folder / "runs").read_text().splitlines()) == (
        0,
        ["train c.yaml --task.name a b --run_dir /r"] * 2,
    )
    assert verbs(pod) == ["create", "scp", "ssh", "ssh", "delete", "create", "scp", "ssh", "ssh"]
    create, *_ = [call for call in pod.calls() if call[3] == "create"]
    assert (
        create
        == (
            "compute tpus queued-resources create mine --node-id=mine --accelerator-type=v6e-256"
            " --runtime-version=v2-alpha-tpuv6e --spot"
        ).split()
    )
    assert "the slice is SUSPENDED; it is asked for anew" in done.stderr


def test_a_run_that_fails_is_not_repeated(pod):
    program(pod.folder / "bin" / "rlvr-jax", 'echo >> "$FOLDER/runs"; echo what failed; exit 5')
    done = pod("train", "mine", "v5p-128", "--", "c.yaml")
    assert (done.returncode, (pod.folder / "runs").read_text()) == (5, "\n")
    assert done.stderr == (
        "launch/tpu_pod.sh: the run failed with exit code 5: see `launch/tpu_pod.sh tail mine`.\n"
    )
    assert (pod.folder / "host" / "rlvr_jax" / "train.log").read_text() == "what failed\n"


def test_a_run_that_goes_on_is_not_started_twice_and_saves_when_it_is_told_to_stop(pod):
    program(
        pod.folder / "bin" / "rlvr-jax",
        """
        trap 'echo saved >> "$FOLDER/saved"; exit 143' TERM
        echo >> "$FOLDER/runs"
        while :; do sleep 0.05; done
        """,
    )
    assert pod("create", "mine", "v4-8").returncode == 0
    assert pod("install", "mine", SHARED="").returncode == 0
    host = pod.folder / "host" / "rlvr_jax"
    assert sorted(str(p.relative_to(host)) for p in host.rglob("*") if p.is_file()) == [
        ".gitignore",
        "launch/local.sh",
        "launch/tpu_pod.sh",
    ]
    for _ in range(2):
        assert pod("run", "mine", "c.yaml").returncode == 0
    wait_for(pod.folder / "runs")
    # `stop` finds the script by its command line, and other tests may have one of that name: so only the words it sends.
    assert pod("--dry-run", "stop", "mine").stdout == (
        "gcloud compute tpus tpu-vm ssh mine --worker=all"
        r" --command=pkill\ -TERM\ -f\ \'\^bash\ launch/local.sh\' " + "\n"
    )
    running = [
        int(path.name)
        for path in pathlib.Path("/proc").iterdir()
        if path.name.isdigit()
        and arguments(path)[:2] == ["bash", "launch/local.sh"]
        and os.readlink(path / "cwd") == str(host)
    ]
    assert len(running) == 1
    os.kill(running[0], 15)
    assert wait_for(host / "train.status") == "143\n"
    assert [(pod.folder / name).read_text() for name in ("runs", "saved")] == ["\n", "saved\n"]


def wait_for(path):
    """What a file says as soon as it says anything."""
    end = time.monotonic() + 20
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, path
        time.sleep(0.02)
    return path.read_text()


def arguments(process):
    """Of a process, by its folder in /proc; none where it has ended."""
    try:
        return (process / "cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def test_the_checkout_is_installed_with_the_projects_extra_and_pins(pod):
    assert pod("install", "mine").returncode == 0
    pip, venv, install = (pod.folder / "installs").read_text().splitlines()
    assert re.fullmatch(r"-m pip install --quiet --user uv==[0-9.]+", pip)
    assert venv == "venv --quiet --allow-existing --python 3.12 .venv"
    *_, constraints, _, package = install.split()
    assert (constraints, package) == ("constraints.txt", ".[tpu]")
    assert "tpu" in EXTRAS and (ROOT / constraints).exists()


def test_a_dry_run_prints_what_would_be_run_and_asks_nothing(pod):
    done = pod("--dry-run", "train", "mine", "v5litepod-16", "--", "c.yaml", SHARED="10.0.0.2:/share")
    printed = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [words[4] for words in printed] == ["create", "scp", "ssh", "ssh"]
    assert "--runtime-version=v2-alpha-tpuv5-lite" in printed[0]
    assert "sudo mount -t nfs 10.0.0.2:/share /srv/shared" in printed[2][-1]
    assert (done.returncode, done.stderr, (pod.folder / "calls").exists()) == (0, "", False)
    done = pod("--dry-run", "delete", "mine")
    assert done.stdout.split() == "gcloud compute tpus queued-resources delete mine --force --quiet".split()


@pytest.mark.parametrize(
    "words",
    [(), ("create", "mine"), ("run", "mine"), ("install",), ("fly", "mine", "c.yaml"), ("delete", "--all")],
)
def test_what_it_does_not_understand_gets_the_list_of_commands(pod, words):
    done = pod(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split()[1] for line in done.stderr.splitlines()[:6]] == [
        "create",
        "install",
        "run",
        "tail",
        "stop",
        "delete",
    ]


# ---- Kubernetes --------------------------------------------------------------------------------------------------


def missing(given, understood, where=""):
    """Keys and values of a manifest that a model made from the published schema does not give back."""
    if isinstance(given, dict) and isinstance(understood, dict):
        for key, value in given.items():
            yield from missing(value, understood.get(key), f"{where}.{key}")
    elif isinstance(given, list) and isinstance(understood, list) and len(given) == len(understood):
        for number, (one, other) in enumerate(zip(given, understood, strict=True)):
            yield from missing(one, other, f"{where}[{number}]")
    elif given != understood:
        yield where


def understood(tree):
    """A JobSet as the models of kubeflow-trainer-api read it, which are generated from the OpenAPI schemas that JobSet
    and Kubernetes publish: a wrong type or a missing field raises, an unknown field is dropped."""
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    return JobsetV1alpha2JobSet.from_dict(tree).to_dict()


@pytest.fixture(scope="module")
def jobset():
    return yaml.safe_load((LAUNCH / "gke_jobset.yaml").read_text())


def test_the_jobset_is_what_the_published_schemas_allow(jobset):
    assert list(missing(jobset, understood(jobset))) == []


@pytest.mark.parametrize(
    "path, key, value",
    [
        ("spec.failurePolicy", "maxRestart", 3),
        ("spec.replicatedJobs.0.template.spec", "backOffLimit", 0),
        ("spec.replicatedJobs.0.template.spec.template.spec.containers.0", "command", "train"),
        ("spec.replicatedJobs.0.template.spec.template.spec", "terminationGracePeriodSeconds", "long"),
    ],
)
def test_a_mistake_anywhere_in_the_jobset_is_found(jobset, path, key, value):
    tree = yaml.safe_load(yaml.safe_dump(jobset))
    node = tree
    for step in path.split("."):
        node = node[int(step) if step.isdigit() else step]
    node[key] = value
    try:
        found = list(missing(tree, understood(tree)))
    except ValueError as error:  # pydantic's
        found = [str(error)]
    assert found and key.lower() in found[0].replace("_", "").lower()


def test_the_jobset_starts_anew_what_was_preempted_and_nothing_else_without_end(jobset):
    """The reason PodFailurePolicy is what a Job fails with when a rule of its podFailurePolicy says FailJob:
    kubernetes.io/docs/tasks/job/pod-failure-policy. What JobSet's actions are called: jobset_types.go, FailurePolicyRule."""
    from kubeflow_trainer_api.models.jobset_v1alpha2_failure_policy_rule import (
        JobsetV1alpha2FailurePolicyRule,
    )

    policy = jobset["spec"]["failurePolicy"]
    (rule,) = policy["rules"]
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["action"] in JobsetV1alpha2FailurePolicyRule.model_fields["action"].description
    assert policy["maxRestarts"] < 5
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    exits, disruption, lost = job["podFailurePolicy"]["rules"]
    assert exits["action"] == disruption["action"] == "FailJob"
    assert exits["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [143]}
    assert disruption["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert lost["action"] == "Ignore" and lost["onExitCodes"]["values"] == [75]
    assert (pod["restartPolicy"], job["backoffLimit"]) == (
        "Never",
        0,
    )  # a podFailurePolicy asks for the first


def test_the_pods_of_the_jobset_fill_the_slice(jobset):
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    across, down = map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == job["completions"] == across * down / chips
    assert job["completionMode"] == "Indexed"
    assert (ROOT / pod["containers"][0]["args"][1]).exists()


# ---- the image ---------------------------------------------------------------------------------------------------

DOCKERFILE = (LAUNCH / "Dockerfile").read_text()
COPIED = [word for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()]


def test_the_dockerfile_passes_hadolint():
    hadolint = pathlib.Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, LAUNCH / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_installed_from_files_that_are_here_with_the_projects_pins():
    assert COPIED == ["pyproject.toml", "constraints.txt", "README.md", "LICENSE", "rlvr_jax", "configs"]
    assert all((ROOT / path).exists() for path in COPIED)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert needed <= set(COPIED)
    (pip,) = re.findall(r"pip install (.*)", DOCKERFILE)
    assert pip == '--no-cache-dir --constraint constraints.txt ".${EXTRA:+[$EXTRA]}"'
    for extra in re.findall(r"EXTRA=(\w+)", DOCKERFILE):
        assert extra in EXTRAS
    low = re.search(r"^ARG PYTHON=3\.(\d+)$", DOCKERFILE, re.MULTILINE)
    assert int(low[1]) >= int(project["project"]["requires-python"].removeprefix(">=3."))


def test_only_what_the_image_needs_goes_to_the_builder():
    ignore = (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignore if not line.startswith("#")]
    assert rules[0] == "*" and rules[-1] == "**/__pycache__"
    assert [rule.removeprefix("!") for rule in rules[1:-1]] == COPIED


def test_the_image_runs_as_another_than_root_and_hands_signals_to_the_run():
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == ["1000"]
    assert 'ENTRYPOINT ["tini", "--", "rlvr-jax"]' in DOCKERFILE
    assert DOCKERFILE.index("USER 1000") > DOCKERFILE.rindex("RUN ")
