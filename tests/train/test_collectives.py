"""What the devices send each other in an update and in the decode loop, for six shapes of a mesh: each kind, and how many arrays.

Arrays are counted and not operations, of which the compiler puts several into one, and numbers are left out. On processors XLA
writes a reduce-scatter as an all-reduce of which each device keeps its part.
"""

from collections import Counter

import jax
import pytest

from rlvr_jax.config import Batch, Config, MeshShape, Model, Scratch
from rlvr_jax.plan.hlo import parse
from rlvr_jax.plan.programs import Calls, laid_out
from rlvr_jax.plan.work import KINDS
from rlvr_jax.rollout.sampling import Sampling
from rlvr_jax.train.program import assemble

pytestmark = pytest.mark.slow

LAYERS, MATRICES = 2, 7  # q, k, v, o, gate, up, down
PASSES = 2  # the prompts, and the answers behind them
USES = LAYERS * MATRICES * PASSES

# Under fsdp a matrix is gathered where it is used: on the way there, and again on the way back (remat: full). So is the chunk of
# the head. The rows of one group of devices look up the embedding together: their tokens are gathered, prompts and answers, and
# each device gets the rows that are its own by an all-to-all, there and back.
GATHERED = {"all-gather": 2 * USES + 2 + PASSES, "all-to-all": 2 * PASSES}

# Sums of gradients: of the matrices where they were used, and of two norms a layer.
SUMS = USES + 2 * LAYERS * PASSES
FSDP = (
    SUMS + 2
)  # and of the last norm, and of the chunk of the head; that of a looked-up row is where the row is stored
DATA = SUMS + 1 + 3  # and of the last norm, and of the head and the embedding, which two passes looked up
BOTH = (
    FSDP + USES + 3
)  # under fsdp first, then the parts under data, the embedding's and the head's among them
TENSOR = 39  # sums over a split width: of each layer's two outputs and their cotangents, of looked-up rows, of a row's statistics

# Under sequence keys and values of a row are gathered, on the way there and again on the way back, and what of their gradient
# is the row's own goes back to its place; prompts, whose 511 tokens it does not divide, stay whole. The others are three numbers a
# token: in which text it is, how far from its start, and its statistics.
KEYS_VALUES = 2 * LAYERS
SEQUENCE = {"all-gather": 2 * KEYS_VALUES + 3, "collective-permute": KEYS_VALUES + 2}
PARTS = (
    KEYS_VALUES + USES // PASSES + 2 * LAYERS + 3
)  # their gradient, and those of the parameters: of the answers' pass

UPDATE = {
    "data=8": {"all-reduce": DATA},
    "fsdp=8": {**GATHERED, "all-reduce": FSDP},
    "data=2,fsdp=4": {**GATHERED, "all-reduce": BOTH},
    "fsdp=4,tensor=2": {**GATHERED, "all-reduce": FSDP + TENSOR},
    "data=2,fsdp=2,tensor=2": {**GATHERED, "all-reduce": BOTH + TENSOR},
    "fsdp=4,sequence=2": dict(Counter(GATHERED) + Counter({**SEQUENCE, "all-reduce": FSDP + PARTS})),
}

# A step of the loop: a number or two of each row, which the schedule of the slots takes from anywhere. Under tensor the outputs of
# each layer are summed, and softmax over the parts of the vocabulary.
SLOTS = {"all-gather": 8}
SPLIT = {"all-gather": 11, "collective-permute": 7, "all-reduce": 18}
# Under sequence, whose devices repeat each other, the compiler splits the search for the slots' next rows.
REPEATED = {"all-gather": 8, "collective-permute": 7, "all-reduce": 7}
DECODE = {
    "data=8": SLOTS,
    "fsdp=8": SLOTS,
    "data=2,fsdp=4": SLOTS,
    "fsdp=4,tensor=2": SPLIT,
    "data=2,fsdp=2,tensor=2": SPLIT,
    "fsdp=4,sequence=2": REPEATED,
}

MESHES = {
    "data=8": (8, 1, 1),
    "fsdp=8": (1, 8, 1),
    "data=2,fsdp=4": (2, 4, 1),
    "fsdp=4,tensor=2": (1, 4, 2),
    "data=2,fsdp=2,tensor=2": (2, 2, 2),
    "fsdp=4,sequence=2": (1, 4, 1, 2),
}


def config(shape):
    """Eight heads, so that all shapes split them; one chunk of the vocabulary."""
    scratch = Scratch(num_layers=LAYERS, dim=64, num_heads=8, num_kv_heads=8, mlp_dim=128)
    return Config(
        model=Model(scratch=scratch, remat="full"),
        batch=Batch(prompts=16, group_size=4),
        sampling=Sampling(max_new_tokens=12),
        mesh=MeshShape(*shape),
    )


def text_of(call):
    compiled = call.function.trace(*call.arguments).lower().compile()
    return compiled, compiled.as_text()


def collectives(text, inside="jit"):
    """(kind, sizes of one array on a device) -> how many are sent in one run, of operations whose name has `inside` in it."""
    found = Counter()
    for _, times, computation in parse(text):
        for each in computation.values():
            kind = each.op.removesuffix("-start")
            if kind in KINDS and inside in each.rest:
                # An all-to-all has as many pieces as there are devices.
                arrays = each.shapes[:1] if kind == "all-to-all" else each.shapes
                for shape in arrays:
                    found[kind, shape.sizes] += times * bool(shape.sizes)
    return +found


def by_kind(found):
    out = Counter()
    for (kind, _), count in found.items():
        out[kind] += count
    return dict(out)


@pytest.mark.parametrize("name", MESHES)
def test_each_collective_of_an_update_and_of_a_decode_step_is_expected(name):
    program = assemble(config(MESHES[name]), num_prompts=100)
    vocab = program.model_config.vocab_size
    with jax.set_mesh(program.mesh):
        calls = Calls(program)
        (update,) = [call for call in calls.training() if call.name == "update"]
        found = collectives(text_of(update)[1])
        assert by_kind(found) == UPDATE[name]
        # No logits and no statistics of all rows: nothing gathered has the vocabulary last.
        assert not [key for key in found if key[0] == "all-gather" and key[1][-1] == vocab]

        made, prefilled = calls.weights(), calls.prefill()
        weights = laid_out(text_of(made)[0], jax.eval_shape(made.function, *made.arguments))
        rows = laid_out(text_of(prefilled)[0], jax.eval_shape(prefilled.function, *prefilled.arguments))
        start = calls.start(rows)
        shapes = jax.eval_shape(lambda rows: calls.loop.start(rows, *start.arguments[1:]), rows)
        slots = laid_out(text_of(start)[0], shapes)
        found = collectives(text_of(calls.decode(weights, rows, slots))[1], inside="while/body")
        assert by_kind(found) == DECODE[name]
        assert all(len(sizes) < 3 or kind == "all-reduce" for kind, sizes in found), (
            "neither weights nor cache move"
        )
