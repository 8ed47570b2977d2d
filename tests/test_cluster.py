"""Who is told to be which process, by what a cluster's variables say; as Slurm, Kubernetes and JAX on a TPU set them."""

import pytest

from rlvr_jax.cluster import Cluster, Place, TpuPod, find_cluster, first_host

SLURM = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[07-12,20]-ib,other",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "2(x8)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
}
POD = {"JAX_NUM_PROCESSES": "4", "JOB_COMPLETION_INDEX": "3", "HOSTNAME": "runs-slice-0-3"}


def found(**variables):
    return find_cluster(variables, Place())


def test_one_process_where_nothing_says_otherwise():
    assert found() is None
    assert found(JAX_NUM_PROCESSES="1") is None
    assert found(JOB_COMPLETION_INDEX="3", HOSTNAME="sweep-3") is None, "a pod of a sweep is a run of its own"
    assert found(**SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    no_step = {name: value for name, value in SLURM.items() if "STEP" not in name}
    assert found(**no_step) is None, "a shell in an allocation"


def test_the_command_line_comes_first():
    assert find_cluster(SLURM, Place("host:1234", 3, 2)) == Cluster("host:1234", 3, 2)
    assert find_cluster({}, Place("[::1]:80", 1, 0)) == Cluster("[::1]:80", 1, 0)


@pytest.mark.parametrize(
    "told, message",
    [
        (
            Place("host:1", None, 0),
            "one of several processes is told all of --coordinator HOST:PORT, --processes N and --process I; got "
            "coordinator=host:1, processes=None, process=0.",
        ),
        (Place("host", 2, 0), "--coordinator is HOST:PORT of process 0, got 'host'."),
        (Place("host:1", 2, 2), "--process=2 of --processes=2: processes are numbered from 0 to 1."),
        (Place("host:1", 0, 0), "--process=0 of --processes=0: processes are numbered from 0 to 0."),
    ],
)
def test_half_an_address_and_a_number_out_of_range_are_refused(told, message):
    with pytest.raises(ValueError) as error:
        find_cluster({}, told)
    assert str(error.value) == message


def test_a_slurm_step():
    assert found(**SLURM) == Cluster("node07-ib:61511", 16, 5)  # 61440 + 71
    assert found(**SLURM, JAX_COORDINATOR_PORT="9").coordinator == "node07-ib:9"
    assert found(**SLURM | {"SLURM_STEP_ID": "1"}).coordinator != "node07-ib:61511", "two steps of one job"


@pytest.mark.parametrize(
    "nodes, first",
    [("a", "a"), ("a,b[1-2]", "a"), ("n[3,5-9],b", "n3"), ("n[001-015]", "n001"), ("r1-n[4-5]-x", "r1-n4-x")],
)
def test_the_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    "visible, on_node, devices",
    [
        ("0,1,2,3", "4", (2, 3)),  # both tasks see all four: the second takes its half
        ("0,1", "4", None),  # Slurm bound two to each
        ("0", "1", None),
        ("", "0", None),
    ],
)
def test_tasks_of_a_slurm_node_share_its_gpus(visible, on_node, devices):
    gpus = {"CUDA_VISIBLE_DEVICES": visible, "SLURM_GPUS_ON_NODE": on_node}
    assert found(**SLURM, **gpus).devices == devices


def test_one_slurm_task_on_a_node_has_all_its_gpus():
    alone = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert found(**alone).devices is None


def test_gpus_that_tasks_cannot_share_are_refused():
    with pytest.raises(ValueError, match="2 tasks of a node do not share 3 GPUs evenly"):
        found(**SLURM, CUDA_VISIBLE_DEVICES="0,1,2")


def test_an_indexed_job_that_says_how_many_its_pods_are():
    address = {"JAX_COORDINATOR_ADDRESS": "runs-0.runs:1234"}
    assert found(**POD, **address) == Cluster("runs-0.runs:1234", 4, 3)
    assert found(**POD, JAX_COORDINATOR_ADDRESS="runs-0.runs").coordinator == "runs-0.runs:8476"
    assert found(**POD, **address, JAX_PROCESS_ID="2").process == 2
    assert found(**POD, JOBSET_NAME="runs") == Cluster("runs-slice-0-0.runs:8476", 4, 3)


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"JAX_NUM_PROCESSES": "2"}, "nothing says which of them this is: set JAX_PROCESS_ID"),
        (POD, "nothing says where process 0 is: set JAX_COORDINATOR_ADDRESS"),
        (POD | {"JAX_NUM_PROCESSES": "two"}, "the variable JAX_NUM_PROCESSES is a whole number, got 'two'."),
        (
            POD | {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_PROCESS_ID": "4"},
            "JAX_PROCESS_ID=4 of JAX_NUM_PROCESSES=4: processes are numbered from 0 to 3.",
        ),
    ],
)
def test_variables_that_do_not_suffice_are_named(variables, message):
    with pytest.raises(ValueError, match=message):
        found(**variables)


def test_a_tpu_pod_is_left_to_jax_and_one_host_needs_nobody():
    tpu = {"TPU_ML_PLATFORM": "JAX"}
    assert found(**tpu) == TpuPod()
    assert found(**tpu, TPU_WORKER_HOSTNAMES="a,b") == TpuPod()
    assert found(**tpu, TPU_WORKER_HOSTNAMES="localhost") is None
    assert found(**tpu, TPU_WORKER_HOSTNAMES="a", MEGASCALE_NUM_SLICES="2") == TpuPod()
    assert found(TPU_WORKER_HOSTNAMES="a,b") is None, "no chips, or no library for them"
