"""The calls of the kernel that the sandbox (`sandbox.py`) refuses, as a filter of seccomp."""

import struct

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The processors that it is written for: column of `_REFUSED`, and AUDIT_ARCH of linux/audit.h."""
_CLONE, _CLONE3, _CLONE_THREAD = (56, 220), 435, 0x00010000
_REFUSED = (
    ((57, None), (58, None)),  # fork, vfork
    ((41, 198),),  # socket: loopback too, and AF_VSOCK, which no namespace holds back
    ((319, 279), (447, 447)),  # memfd_create, memfd_secret
    ((29, 194), (68, 186), (64, 190)),  # shmget, msgget, semget
    (
        (101, 117),
        (310, 270),
        (311, 271),
        (438, 438),
    ),  # ptrace, process_vm_readv, process_vm_writev, pidfd_getfd
    ((272, 97), (308, 268), (161, 51), (155, 41)),  # unshare, setns, chroot, pivot_root
    ((165, 40), (166, 39), (428, 428), (429, 429), (430, 430), (442, 442)),  # mount and its parts
    ((321, 280), (298, 241), (323, 282), (425, 425)),  # bpf, perf_event_open, userfaultfd, io_uring_setup
    ((248, 217), (249, 218), (250, 219), (304, 265)),  # add_key, request_key, keyctl, open_by_handle_at
)
_EPERM, _ENOSYS, _ALLOW, _KILL = 0x00050001, 0x00050026, 0x7FFF0000, 0x80000000


def seccomp_filter(machine: str) -> bytes:
    """The filter as bwrap reads it: `struct sock_filter` after the other (linux/filter.h, linux/seccomp.h)."""
    column, arch = MACHINES[machine]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    code = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, _KILL), (load, 0, 0, 0)]
    if machine == "x86_64":  # the x32 calls, the same under other numbers
        code += [(at_least, 0, 1, 0x40000000), (give, 0, 0, _EPERM)]
    for number in (pair[column] for group in _REFUSED for pair in group):
        if number is not None:
            code += [(equal, 0, 1, number), (give, 0, 0, _EPERM)]
    # clone3 has its flags in memory, where no filter sees them; "unknown" sends the C library to clone.
    code += [(equal, 0, 1, _CLONE3), (give, 0, 0, _ENOSYS)]
    code += [(equal, 0, 3, _CLONE[column]), (load, 0, 0, 16), (any_bit, 1, 0, _CLONE_THREAD)]
    code += [(give, 0, 0, _EPERM), (give, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
