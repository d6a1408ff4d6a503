"""A Python that has loaded what kernels load, and forks one for each request: a kernel begins with nothing left to load.

    {"connection_file": PATH, "cwd": PATH}   forks a kernel       {"pid": N}
    {"poll": PID}                            how its kernel is    {"status": null, or how it ended}
    {"load": MODULE}                         loads it for all     {}, also where it cannot be loaded

Lines of JSON on the socket that it was given; its end ends this process, and the kernels end with it. It has one thread
and nothing of any kernel: no socket, no shell. Kernels share its memory until they write to it. They also share
what a process draws at its start (addresses, the seed of hashes): all of them are of one sandbox.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
import time

# What every kernel loads. The debugger is among it: ipykernel loads that at the first kernel.
FIRST = ["ipykernel.kernelapp", "ipykernel.ipkernel", "ipykernel.zmqshell", "ipykernel.debugger"]
# Seconds that a module may take to load, on a loaded machine too.
LOAD_PATIENCE = 15
# Memory runs out in a kernel first, and not here.
KERNELS_OOM = "500"


def can_load(name):
    """Tries it in a process of its own: a module that the user broke may end its process, or never come back."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            importlib.import_module(name)
            status = 0
        finally:
            os._exit(status)
    until = time.monotonic() + LOAD_PATIENCE
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.005)


def load(names):
    for name in names:
        importlib.import_module(name)
    # A collection would write to every object, and each kernel would have its own copy then.
    gc.collect()
    gc.freeze()


def fork(request):
    """In the kernel: its connection file. Here: its pid, once it has a group of its own."""
    told, tells = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(told)
        os.close(tells)
        raise
    if pid == 0:
        # Nothing of this may come back as an answer: this process is not the one that was asked.
        try:
            os.close(told)
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(request["cwd"])
            os.write(tells, b"1")
            os.close(tells)
            return None, request["connection_file"]
        except BaseException:
            os._exit(1)
    os.close(tells)
    begun = os.read(told, 1)
    os.close(told)
    if not begun:
        os.waitpid(pid, 0)
        raise OSError(f"no kernel in {request['cwd']!r}")
    return {"pid": pid}, None


def poll(pid):
    """Nobody else waits for it, so its number is its own until this says that it ended."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return {"status": -signal.SIGKILL}
    return {"status": os.waitstatus_to_exitcode(status) if ended else None}


def serve(requests):
    """Answers until the socket ends. In a kernel it gives the file of its connection."""
    lines = requests.makefile("r")
    while line := lines.readline():
        request = json.loads(line)
        try:
            if "poll" in request:
                answer = poll(request["poll"])
            elif "load" in request:
                # One that is broken breaks where it is used.
                if can_load(request["load"]):
                    load([request["load"]])
                answer = {}
            else:
                answer, kernel = fork(request)
                if kernel:
                    return kernel
        except OSError as error:
            answer = {"error": str(error)}
        requests.sendall(json.dumps(answer).encode() + b"\n")
    return None


def kernel(connection_file):
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write(KERNELS_OOM)
    except OSError:
        pass
    if "numpy" in sys.modules:
        # It draws its seed when it is loaded; Python's own random is seeded by the fork.
        sys.modules["numpy"].random.seed()
    parent = os.getppid()
    os.environ["JPY_PARENT_PID"] = str(parent)
    sys.argv = ["ipykernel_launcher.py", "-f", connection_file]
    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance(parent_handle=parent)
    app.initialize(sys.argv[1:])
    app.start()


def main():
    # This file's directory is no place for the imports of kernels.
    del sys.path[0]
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    requests = socket.socket(fileno=int(sys.argv[1]))
    load(FIRST)
    connection_file = serve(requests)
    requests.close()
    if connection_file:
        kernel(connection_file)


if __name__ == "__main__":
    main()
