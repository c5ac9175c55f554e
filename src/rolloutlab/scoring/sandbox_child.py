"""Supervisor of one sandboxed process: namespaces and limits, then the code, then the end of every process it started.

A script for `python -I -S`, so it imports the standard library alone. `sandbox.py` starts it with one argument, a JSON
object: `folder` of `main.py`, `timeout` (s), `memory` (bytes), `processes`, `disk` (bytes), `python`, `environment`,
`report` (a file descriptor, to which one JSON object is written at the end), `calls` (none, or two file descriptors
by which `sandbox_checks.py` calls the program), and `values` (the text of `sandbox_values.py`).

With namespaces (Linux, namespaces(7)) it is process 1 of a PID namespace, whose end the kernel makes the end of every
process in it. Without them it is the subreaper (prctl(2)) of all that the code starts, and kills its children until
none is left; on systems with neither it kills the process group.
"""

from __future__ import annotations  # nothing is imported for types: it would take a third of the time

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NEWNS, _NEWIPC, _NEWUTS, _NEWUSER, _NEWPID, _NEWNET = 1 << 17, 1 << 27, 1 << 26, 1 << 28, 1 << 29, 1 << 30
_NAMESPACES = _NEWNS | _NEWIPC | _NEWUTS | _NEWPID | _NEWNET
_PDEATHSIG, _NO_NEW_PRIVS, _SUBREAPER, _CAPBSET_DROP, _SECUREBITS = 1, 38, 36, 24, 28
_NOROOT_LOCKED = 1 | 2
_NOSUID_NODEV, _NOEXEC, _PRIVATE = 2 | 4, 8, (1 << 14) | (1 << 18)
_READONLY, _BIND = 1, 4096
_DEVICES = "null", "zero", "full", "random", "urandom"
_MOUNT_SETATTR, _RECURSIVE = 442, 0x8000
_FIRST_UID = 2_000_000_000
"""Users from here on have no files and no other processes; each sandbox of root has one of its own."""
_PAUSE = 0.02
"""Seconds between two looks at the processes, at most."""
_MARK = 16
_RUNNER = """
import os, sys

def run(os, sys, given, ended, *calls):
    write = os.write
    with open(given, "rb") as file:
        mark = file.read()
    low = os.dup(ended)
    os.close(ended)
    lines = [os.fdopen(calls[0], "rb"), os.fdopen(calls[1], "wb")] if calls else []
    names, path = sys.modules["__main__"].__dict__, os.path.abspath("main.py")
    del names["run"], names["os"], names["sys"]
    names["__file__"], sys.argv[:] = path, ["main.py"]

    def finish():
        try:
            write(low, mark)
        except OSError:  # the program has closed all files
            pass
        if lines:
            serve(*lines)

    def serve(requests, answers):
        import json

        codec = {}
        exec(VALUES, codec)
        kept, places = [], {}

        def place(thing):
            if id(thing) not in places:  # which stays its own: it is kept
                places[id(thing)] = len(kept)
                kept.append(thing)
            return places[id(thing)]

        def raises(kind):
            base = next(base for base in kind.__bases__ if issubclass(base, Exception))
            builtin = base.__module__ == "builtins"
            return ["exception", [place(kind), kind.__name__, base.__name__ if builtin else raises(base)]]

        def other(value):
            if isinstance(value, type):
                own = issubclass(value, Exception) and value.__module__ != "builtins"
                return raises(value) if own else ["object", [place(value), value.__name__]]
            if hasattr(value, "tolist"):  # an array, or a number of one
                return codec["encode"](value.tolist(), other)
            return ["object", [place(value), type(value).__name__]]

        def encoded(value):
            try:
                return codec["encode"](value, other)
            except RecursionError:
                return ["object", [place(value), type(value).__name__]]

        def do(what, thing, values, named):
            if what == "call":
                return thing(*values, **named)
            if what == "get":
                return getattr(thing, values[0])
            if what == "set":
                return setattr(thing, *values)
            if what == "item":
                return thing[values[0]]
            if what == "in":
                return values[0] in thing
            if what == "next":
                try:
                    return [next(thing)]
                except StopIteration:
                    return []
            return {"len": len, "iter": iter, "str": str, "repr": repr}[what](thing)

        def send(answer):
            answers.write(json.dumps(answer).encode() + b"\\n")
            answers.flush()

        decoded = lambda node: codec["decode"](node, lambda kind, held: kept[held[0]])
        place(type("Program", (), {"__getattr__": lambda self, name: names[name]})())
        send([name for name in names if not name.startswith("__")])
        for line in requests:
            what, where, given, named = json.loads(line)
            values = [decoded(node) for node in given]
            try:
                done = do(what, kept[where], values, {name: decoded(node) for name, node in named.items()})
                answer = "value", encoded(done)
            except Exception as error:
                kind = type(error)
                own = kind.__name__ if kind.__module__ == "builtins" else raises(kind)
                answer = "raised", [own, str(error)]
            changed = [encoded(value) if type(value) in (list, dict, set) else None for value in values]
            send([*answer, changed])

    def exits_at_its_end(stop):
        import ast

        last = ast.parse(source).body[-1]
        while isinstance(last, ast.If):
            last = last.body[-1]
        called = getattr(getattr(last, "value", None), "func", None)
        name = getattr(called, "attr", getattr(called, "id", ""))
        frame = stop.__traceback__.tb_next
        if stop.code or name not in ("exit", "quit", "main") or frame is None or frame.tb_lineno < last.lineno:
            return False
        while frame := frame.tb_next:
            if frame.tb_frame.f_code.co_filename == path:
                return False
        return True

    try:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), names)
    except SystemExit as stop:
        if exits_at_its_end(stop):
            finish()
        raise
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1)  # the program may have replaced `sys.exit`
    finish()

run(os, sys, *map(int, sys.argv[1:]))
"""
"""Runs `main.py` as `__main__`. When its last line has run, it writes a mark, which it has read before, to a file.

A program that ends itself before, by `os._exit(0)` or `sys.exit()`, leaves none: a check after it has not run. One
whose last line calls `sys.exit`, `quit` or `unittest.main`, and exits there with 0, has come to its end. The mark is in
the process of the program, which can find it and forge its end. So checks that count are made by `sandbox_checks.py`,
in another process, which calls the program's functions by `serve`; nothing there trusts what `serve` answers.
"""

_libc = ctypes.CDLL(None, use_errno=True)


def main(options: dict[str, Any]) -> None:
    """Run `main.py` and report its end."""
    report = options["report"]
    os.set_inheritable(report, False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which runs the `finally` below
    _prctl(_PDEATHSIG, signal.SIGKILL)
    options["user"] = _user(options)
    if sys.platform == "linux" and _unshare():
        supervisor = os.fork()  # the first process after `unshare` is process 1 of the PID namespace
        if supervisor:
            try:
                os.waitpid(supervisor, 0)
            except SystemExit:  # of SIGTERM
                os.kill(supervisor, signal.SIGKILL)
                raise
            return
        _prctl(_PDEATHSIG, signal.SIGKILL)
        options["isolated"] = _private_mounts(options)
    else:
        _prctl(_SUBREAPER, 1)
        options["isolated"] = {"network": False, "files": False, "processes": False}
    options["sockets"] = _can_filter()
    ended = _supervised(options)
    ended["user"] = options["user"] is not None or os.getuid() != 0
    ended["sockets"] = options["sockets"]
    os.write(report, json.dumps(ended | {"isolated": options["isolated"]}).encode())
    os._exit(0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc.prctl(option, value, 0, 0, 0)


_FILTERS = {
    # machine: audit architecture, and numbers of: socket, io_uring_setup, unshare, setns, clone, clone3, ptrace,
    # process_vm_readv, process_vm_writev, keyctl, add_key, request_key, bpf, pidfd_getfd
    "x86_64": (0xC000003E, 41, 425, 272, 308, 56, 435, 101, 310, 311, 250, 248, 249, 321, 438),
    "aarch64": (0xC00000B7, 198, 425, 97, 268, 220, 435, 117, 270, 271, 219, 217, 218, 280, 438),
}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000
"""System calls of the x32 form have this bit in their number."""


def _can_filter() -> bool:
    """Whether the kernel filters system calls (seccomp(2)), and their numbers are known for this machine."""
    if sys.platform != "linux" or os.uname().machine not in _FILTERS or sys.maxsize < 2**32:
        return False
    # with no filter at all it answers EFAULT (14) where it knows filters, and EINVAL where it does not
    _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == 14


def _filter() -> None:
    """Refuse system calls for which a program that only computes has no use; OSError if that cannot be.

    All sockets, since those with a path (of Docker, of an SSH agent) pass a network namespace, and since in a
    container without namespaces nothing else keeps the network away; `socketpair`, which stays in the program, is
    left. io_uring makes sockets as well. Namespaces of its own would give the program capabilities in them;
    `clone3`, whose flags a filter cannot read, is answered as by an old kernel. Other calls are for the memory of
    other processes, or for keys.
    """
    architecture, socket, *refused = _FILTERS[os.uname().machine]
    io_uring, unshare, setns, clone, clone3, *others = refused
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    steps: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, architecture),
        (give, 0, 0, _KILL),
        (load, 0, 0, 0),  # the number of the call
        (at_least, 0, 1, _X32),
        (give, 0, 0, _ERRNO | _EPERM),
    ]
    for number in (socket, io_uring, unshare, setns, *others):
        steps += [(equal, 0, 1, number), (give, 0, 0, _ERRNO | _EPERM)]
    steps += [(equal, 0, 1, clone3), (give, 0, 0, _ERRNO | _ENOSYS)]
    namespaces = _NAMESPACES | _NEWUSER
    steps += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 0, 1, namespaces), (give, 0, 0, _ERRNO | _EPERM)]
    steps += [(give, 0, 0, _ALLOW)]
    packed = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = ctypes.create_string_buffer(packed, len(packed))
    whole = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(whole, len(whole)), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls was refused")


def _user(options: dict[str, Any]) -> int | None:
    """The user of the code: as root one without files and processes, if it can read Python; else the present one."""
    if os.getuid() or not all(map(_world_readable, (options["python"], os.__file__))):
        return None
    return _FIRST_UID + os.getpid()


def _world_readable(path: str) -> bool:
    real = os.path.realpath(path)
    while real != os.path.dirname(real):
        if not os.stat(real).st_mode & (1 if os.path.isdir(real) else 4):
            return False
        real = os.path.dirname(real)
    return True


def _unshare() -> bool:
    """Whether this process has namespaces of its own; without privileges that needs a user namespace."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 and _libc.unshare(_NAMESPACES) == 0:
        return True
    if _libc.unshare(_NEWUSER | _NAMESPACES):
        return False
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:  # the code then runs as the user without a name: it can read less
        pass
    return True


def _private_mounts(options: dict[str, Any]) -> dict[str, bool]:
    """Mounts of this namespace: all read-only but a folder in memory, of limited size, and only own processes.

    What a kernel or a container refuses is left out, and False in the result.
    """
    _mount("none", "/", None, _PRIVATE)
    readonly = (ctypes.c_uint64 * 4)(1, 0, 0, 0)  # struct mount_attr: attr_set = MOUNT_ATTR_RDONLY
    with open(os.path.join(options["folder"], "main.py"), "rb") as file:
        code = file.read()
    files = not _libc.syscall(_MOUNT_SETATTR, -100, b"/", _RECURSIVE, readonly, ctypes.sizeof(readonly))
    user = os.getuid() if options["user"] is None else options["user"]
    if _mount("tmpfs", options["folder"], "tmpfs", _NOSUID_NODEV, f"size={options['disk']},mode=700,uid={user}"):
        with open(os.path.join(options["folder"], "main.py"), "wb") as file:
            file.write(code)
    _private_devices()
    _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID_NODEV | _NOEXEC, f"size={options['disk']},mode=1777")
    # read-only, as root could else change settings of the kernel, for which it needs no capability
    processes = _mount("proc", "/proc", "proc", _NOSUID_NODEV | _NOEXEC | _READONLY)
    return {"network": True, "files": files, "processes": processes}


def _private_devices() -> None:
    """A `/dev` with what every program may have: root could else write to disks, also where mounts are read-only."""
    files = {}
    for name in _DEVICES:
        try:
            files[name] = os.open(f"/dev/{name}", os.O_PATH)
        except OSError:  # a container without it
            pass
    if _mount("tmpfs", "/dev", "tmpfs", _NOSUID_NODEV | _NOEXEC, "size=64k,mode=755"):
        for name, file in files.items():
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
            _mount(f"/proc/self/fd/{file}", f"/dev/{name}", None, _BIND)
        for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(f"/proc/self/{target}", f"/dev/{name}")
        os.mkdir("/dev/shm")
    for file in files.values():
        os.close(file)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> bool:
    filesystem = kind.encode() if kind else None
    error: int = _libc.mount(source.encode(), os.fsencode(target), filesystem, ctypes.c_ulong(flags), data.encode())
    return error == 0


def _supervised(options: dict[str, Any]) -> dict[str, Any]:
    """How the code ended: return code (negative: a signal), the limit that ended it, and whether it was at its end."""
    deadline = time.monotonic() + options["timeout"]
    (given, mark_file), (ended_file, ended_by) = os.pipe(), os.pipe()
    mark = os.urandom(_MARK)
    os.write(mark_file, mark)
    os.close(mark_file)
    os.set_blocking(ended_file, False)
    pid = os.fork()
    if pid == 0:
        try:
            _become(options, given, ended_by)
        finally:
            os._exit(127)
    code, limit, pause = None, "", 0.001
    try:
        while code is None:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
            elif not ended:
                limit = "timeout" if time.monotonic() > deadline else _crowd(options)
                if limit:
                    break
                time.sleep(pause)
                pause = min(pause * 2, _PAUSE)
    finally:
        if not options["isolated"]["network"]:  # else the kernel ends the others with this process
            _kill_tree(pid)
    finished = code is not None and _read(ended_file) == mark
    return {"returncode": -signal.SIGKILL if code is None else code, "limit": limit, "finished": finished}


def _read(file: int) -> bytes:
    """What is in a pipe, if anything."""
    try:
        return os.read(file, 2 * _MARK)
    except BlockingIOError:
        return b""


def _crowd(options: dict[str, Any]) -> str:
    """`processes` or `memory` when all processes of the namespace together have more than the code may have."""
    if not options["isolated"]["processes"]:
        return ""
    count, pages = 0, 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/statm") as file:
                    _, resident, shared, *_ = map(int, file.read().split())
            except (OSError, ValueError):  # it has ended
                continue
            count, pages = count + 1, pages + resident - shared
    if count > options["processes"]:
        return "processes"
    return "memory" if pages * resource.getpagesize() > options["memory"] else ""


def _kill_tree(pid: int) -> None:
    """End the process group, then every child; orphans become children of the subreaper, so this ends."""
    give_up = time.monotonic() + 5
    while time.monotonic() < give_up:
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass
        for child in _children():
            os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _become(options: dict[str, Any], given: int, ended: int) -> None:
    """Replace this process by the code, within its limits. given, ended: file descriptors of `_RUNNER`."""
    folder, memory, user = options["folder"], options["memory"], options["user"]
    os.setsid()
    os.chdir(folder)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # when memory runs out the kernel ends this process first
    except OSError:
        pass
    seconds = (int(options["timeout"]) + 1) * (os.cpu_count() or 1)  # of all threads; the deadline usually comes first
    for name, limit in (("CPU", seconds), ("FSIZE", options["disk"]), ("CORE", 0), ("AS", memory), ("NOFILE", 256)):
        _limit(name, limit)
    if sys.platform == "linux":  # elsewhere it counts all processes of the user, and there may be many
        _limit("NPROC", options["processes"] + (0 if user else _tasks_of(os.getuid())))
    for capability in range(64):  # capabilities(7): without them root, too, can neither mount nor change limits
        _prctl(_CAPBSET_DROP, capability)
    _prctl(_SECUREBITS, _NOROOT_LOCKED)
    if user is not None:
        os.chown(folder, user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _prctl(_NO_NEW_PRIVS, 1)
    if options["sockets"]:
        _filter()
    _prctl(_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.set_inheritable(given, True)
    os.set_inheritable(ended, True)
    for file in options["calls"]:
        os.set_inheritable(file, True)
    files = map(str, (given, ended, *options["calls"]))
    runner = _RUNNER.replace("VALUES", repr(options["values"]))
    command = [options["python"], "-I", "-u", "-B", "-X", "utf8", "-c", runner, *files]
    os.execve(command[0], command, options["environment"])


def _limit(name: str, value: int) -> None:
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if kind is not None:
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):  # macOS refuses some
            pass


def _tasks_of(uid: int) -> int:
    """Threads that this user has elsewhere: before Linux 5.14 the limit counts them, too."""
    tasks = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                tasks += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            pass
    return tasks


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
