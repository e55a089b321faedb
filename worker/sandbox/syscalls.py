"""
A seccomp filter: system calls that no handler needs and that could break its confinement get the answer "not permitted".
Used by :mod:`worker.sandbox.warden`.

Classic BPF over ``struct seccomp_data`` (Linux' ``seccomp(2)``), for the two architectures that have GPUs. A call that is
not listed is allowed: the confinement itself is Landlock's and the own user's.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence
from typing import Final

_SECCOMP_SET_MODE_FILTER: Final = 1
_TSYNC: Final = 1
_LOAD, _AND, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_BITS, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4
#: Where an argument's lower half is, on a little-endian machine; the kernel reads no more of an int.
_ARGUMENTS: Final = range(16, 64, 8)

#: name → (x86_64, aarch64).
_REFUSED: Final = {
    # Its process group is what the zygote ends it by, with all that it has started.
    "setsid": (112, 157),
    "setpgid": (109, 154),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # A world of its own, in which it would be root and see more of the kernel.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # Parts of the kernel that have been ways in.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # Memory and messages that outlive their maker.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    # The machine.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
}
#: Of a CPU partition: off its cores it would be on a training's.
_AFFINITY: Final = (203, 122)
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR, _LISTEN = (56, 220), (435, 435), (41, 198), (53, 199), (50, 201)
#: sendto, sendmsg and sendmmsg, each with the argument that its flags are.
_SENDS: Final = (((44, 206), 3), ((46, 211), 2), ((307, 269), 3))
_SECCOMP: Final = (317, 277)
#: CLONE_NEW* of clone(2): namespaces of mounts, groups, names, IPC, users, processes, network.
_NAMESPACES: Final = 0x7E020000
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
#: Of the type of a socket; what is above are SOCK_NONBLOCK and SOCK_CLOEXEC.
_TYPE: Final = 0xF
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET = 1, 2, 5
#: 0 = the family's own for that type. Landlock knows the ports of IPPROTO_TCP alone, so MPTCP (262), SMC (256) and SCTP
#: (132) pass it.
_PROTOCOLS: Final = (0, 6, 17)
#: Begins a connection in a call that Landlock does not look at.
_MSG_FASTOPEN: Final = 0x20000000
_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


_REFUSE: Final = _instruction(_RETURN, _ERRNO | errno.EPERM)
_PASS: Final = _instruction(_RETURN, _ALLOW)


def _only(argument: int, values: Sequence[int], mask: int = 0xFFFFFFFF) -> list[bytes]:
    """Go on where that argument, masked, is one of ``values``; refuse the call otherwise."""
    among = [_instruction(_JUMP_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [_instruction(_LOAD, _ARGUMENTS[argument]), _instruction(_AND, mask), *among, _REFUSE]


def _without(argument: int, bits: int) -> list[bytes]:
    """Allow the call where that argument has none of ``bits``; refuse it otherwise."""
    return [_instruction(_LOAD, _ARGUMENTS[argument]), _instruction(_JUMP_BITS, bits, 0, 1), _REFUSE, _PASS]


def _program(which: int, architecture: int, *, unix_sockets: bool, affinity: bool, listen: bool) -> bytes:
    def on(number: int, *answer: bytes) -> list[bytes]:
        """``answer`` for one system call; the others jump over it."""
        return [_instruction(_JUMP_EQUAL, number, 0, len(answer)), *answer]

    refused = [*_REFUSED.values(), *([] if affinity else [_AFFINITY]), *([] if listen else [_LISTEN])]
    lines = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if which == 0:
        # The x32 calls: the same work under other numbers.
        lines += [_instruction(_JUMP_ABOVE, 0x40000000, 0, 1), _REFUSE]
    for numbers in refused:
        lines += on(numbers[which], _REFUSE)
    # Its flags are in memory, where a filter cannot look; libc tries clone then.
    lines += on(_CLONE3[which], _instruction(_RETURN, _ERRNO | errno.ENOSYS))
    lines += on(_CLONE[which], *_without(0, _NAMESPACES))
    for numbers, flags in _SENDS:
        lines += on(numbers[which], *_without(flags, _MSG_FASTOPEN))
    local: list[bytes] = []
    if unix_sockets:
        # Whatever else listens on a unix socket of this machine listens for streams or datagrams.
        packets = [*_only(1, (_SOCK_SEQPACKET,), _TYPE), _PASS]
        local = [_instruction(_LOAD, _ARGUMENTS[0]), _instruction(_JUMP_EQUAL, _AF_UNIX, 0, len(packets)), *packets]
    internet = [*_only(0, (_AF_INET, _AF_INET6)), *_only(1, (_SOCK_STREAM, _SOCK_DGRAM), _TYPE), *_only(2, _PROTOCOLS)]
    lines += on(_SOCKET[which], *local, *internet, _PASS)
    # Other families have pairs that reach further than each other; so have pairs of datagrams, which can be sent to any
    # name.
    lines += on(_SOCKETPAIR[which], *_only(0, (_AF_UNIX,)), *_only(1, (_SOCK_STREAM, _SOCK_SEQPACKET), _TYPE), _PASS)
    lines.append(_PASS)
    return b"".join(lines)


def refuse_the_rest(*, unix_sockets: bool, affinity: bool, listen: bool) -> bool:
    """
    Put the filter over all threads of this process and all that it starts; False on a machine or kernel that has none.

    ``unix_sockets``: whether unix sockets of the kind SEQPACKET may be made (pairs of these and of streams always may);
    ``affinity``: whether it may choose its cores; ``listen``: whether any socket may be listened on. Of other sockets
    there are TCP and UDP alone. Needs no_new_privs.
    """
    place = _ARCHITECTURES.get(platform.machine())
    if place is None:
        return False
    code = _program(*place, unix_sockets=unix_sockets, affinity=affinity, listen=listen)
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(_SECCOMP[place[0]])
    return bool(
        libc.syscall(number, ctypes.c_uint(_SECCOMP_SET_MODE_FILTER), ctypes.c_uint(_TSYNC), ctypes.byref(program)) == 0
    )
