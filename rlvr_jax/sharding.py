"""The device mesh, the one table from logical axes to mesh axes, and splits that keep shards where they are.

| axis       | what it splits                                  | what it sends, in a layer and pass                            |
|------------|-------------------------------------------------|---------------------------------------------------------------|
| `data`     | rows                                            | nothing; once an update the gradient, summed                  |
| `fsdp`     | rows, and each parameter's width                | each matrix, gathered, and its gradient, summed               |
| `tensor`   | heads, the MLP's width and the vocabulary       | the outputs of attention and MLP, summed                      |
| `sequence` | the tokens of a row, where they are trained on  | keys and values of a row, gathered, and their gradient, summed |

Under `sequence` (context parallelism, arXiv:2407.21783, section 3.3.2) a device has T / sequence tokens
of each of its rows in all that a layer keeps and in the logits; places in a text and which text it is are of the whole row, so
nothing of a packed row changes. Prompts whose width it does not divide stay whole. Its devices hold the same rows and parameters,
so in sampling, where a row has one token at a time, they repeat each other.
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor", "sequence")

RULES: dict[str, tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),  # rows of a rollout, and prompts
    "replicas": ("data",),  # the same rows, where `fsdp` splits their width
    "embed": ("fsdp",),  # model width of a *parameter*
    "mlp": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "vocab": ("tensor",),
    "layers": None,
    "head_dim": None,
    "length": ("sequence",),  # tokens of rows that are computed whole
    "act": None,  # model width of an activation
}
"""Logical axis of an array -> mesh axes it is split over. The only place that knows."""

Tree = TypeVar("Tree")


def make_mesh(
    data: int = -1,
    fsdp: int = 1,
    tensor: int = 1,
    sequence: int = 1,
    *,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh with axes `data`, `fsdp`, `tensor`, `sequence`; one of them may be -1 and takes the devices that are left.

    Raises ValueError where the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor, "sequence": sequence}
    wild = [name for name, size in sizes.items() if size == -1]
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if len(wild) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise ValueError(f"mesh sizes are positive, and one of them may be -1 (what is left); got {sizes}.")
    if wild and len(devices) % fixed == 0:
        sizes[wild[0]] = len(devices) // fixed
    if math.prod(sizes.values()) != len(devices):
        raise ValueError(
            f"mesh {sizes} does not fill {len(devices)} devices: the sizes must multiply to {len(devices)}; "
            "set one of them to -1."
        )
    return jax.make_mesh(
        tuple(sizes.values()), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=list(devices)
    )


def spec(
    axes: Sequence[str | None],
    shape: Sequence[int] | None = None,
    mesh: Mesh | AbstractMesh | None = None,
) -> PartitionSpec:
    """PartitionSpec of logical axes: `spec(("batch", None))`.

    With `shape` and `mesh`, an axis that its mesh axes do not divide stays whole (8 key heads on 16 tensor shards).
    Raises ValueError for an axis that the table does not have.
    """
    out = []
    for i, axis in enumerate(axes):
        if axis is not None and axis not in RULES:
            raise ValueError(f"no logical axis called {axis!r}; sharding.RULES has {', '.join(RULES)}.")
        mesh_axes = RULES[axis] if axis is not None else None
        if mesh_axes and shape is not None and mesh is not None:
            if shape[i] % math.prod(mesh.shape[a] for a in mesh_axes):
                mesh_axes = None
        out.append(mesh_axes)
    return PartitionSpec(*out)


def named(mesh: Mesh, axes: Sequence[str | None], shape: Sequence[int] | None = None) -> NamedSharding:
    """`spec` on a mesh."""
    return NamedSharding(mesh, spec(axes, shape, mesh))


def row_sharding(mesh: Mesh) -> NamedSharding:
    """For every leaf whose axis 0 is B (or P)."""
    return named(mesh, ("batch",))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pin an activation to the table's layout; the identity outside a mesh (`jax.set_mesh`)."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes, x.shape, mesh))


def in_use(x: jax.Array, stored: tuple[str | None, ...], used: tuple[str | None, ...]) -> jax.Array:
    """A weight in the layout in which it is computed with. Its gradient goes straight back into that in which it is stored.

    `constrain` alone would have the gradient in the layout of its use too: summed whole on every device, twice the bytes of
    a sum of which each device gets its part.
    """
    return cast(jax.Array, _in_use(x, stored, used))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _in_use(x: jax.Array, stored: tuple[str | None, ...], used: tuple[str | None, ...]) -> jax.Array:
    return constrain(x, *used)


_in_use.defvjp(
    lambda x, stored, used: (constrain(x, *used), None),
    lambda stored, used, _, g: (constrain(g, *stored),),
)


def batch_shards(mesh: Mesh) -> int:
    """Over how many shards the rows are split."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def tokens_of(x: jax.Array) -> jax.Array:
    """[B, T, ...] -> [B * T, ...], part of the rows by part: so that of tokens split over `sequence` each device keeps its own,
    which lie together in no other order.
    """
    parts = _length_shards(x.shape[1])
    if parts == 1:
        return x.reshape(-1, *x.shape[2:])
    out = x.reshape(x.shape[0], parts, -1, *x.shape[2:])
    return out.swapaxes(0, 1).reshape(-1, *x.shape[2:])


def rows_of(x: jax.Array, rows: int) -> jax.Array:
    """The inverse of `tokens_of`: [B * T, ...] -> [B, T, ...]."""
    parts = _length_shards(x.shape[0] // rows)
    if parts == 1:
        return x.reshape(rows, -1, *x.shape[1:])
    out = x.reshape(parts, rows, -1, *x.shape[1:])
    return out.swapaxes(0, 1).reshape(rows, -1, *x.shape[1:])


def _length_shards(length: int) -> int:
    """Over how many shards rows of that length are split, in the mesh in use."""
    parts = jax.sharding.get_abstract_mesh().shape.get("sequence", 1)
    return 1 if length % parts else parts


def microbatches(tree: Tree, count: int, block: int) -> Tree:
    """[B, ...] -> [count, B / count, ...], splitting whole blocks of `block` rows (a group, or a part of one).

    Strided: micro-batch i holds blocks i, i + count, ... so a batch that is sharded over rows stays on its devices,
    where contiguous micro-batches would each sit on a few devices only.
    """

    def split(x):
        if x.shape[0] % (count * block):
            raise ValueError(
                f"{x.shape[0]} rows do not split into {count} micro-batches of blocks of {block} rows."
            )
        blocks = x.reshape(-1, count, block, *x.shape[1:]).swapaxes(0, 1)
        return blocks.reshape(count, -1, *x.shape[1:])

    return jax.tree.map(split, tree)


_begins = threading.Lock()


def in_order(function: Callable) -> Callable:
    """A jitted function, begun by one thread at a time.

    So all devices get the programs of several threads in one order, without which a collective of the one could wait for
    that of another for ever.
    """

    @functools.wraps(function)
    def begun(*args: Any) -> Any:
        with _begins:
            return function(*args)

    return begun
