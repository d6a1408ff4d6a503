"""Kernels of Python as forks of one process that has loaded all, `zygote.py`; and whether what it has loaded is still what is installed."""

import json
import os
import signal
import site
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.metadata import EntryPoint

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

ZYGOTE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
# What most users load. Not pyplot: it looks for its kernel when it is loaded.
AHEAD = ["numpy", "pandas", "matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.font_manager"]
# Seconds until a zygote that says nothing counts as lost: it may load a module for half of that.
PATIENCE = 30
# Seconds between two looks at a kernel whose end is waited for.
LOOK = 0.005


def installed():
    """What changes with every installation: the directories of packages."""
    found = []
    for path in [*site.getsitepackages(), site.getusersitepackages()]:
        try:
            seen = os.stat(path)
            found.append((path, seen.st_ino, seen.st_mtime_ns))
        except OSError:
            found.append((path, None, None))
    return found


class Gone(Exception):
    """The zygote ended, and its kernels with it."""


class Zygote:
    """One such process. It lives as long as its kernels: they end with it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.installed = installed()
        self.socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, ZYGOTE, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.socket.settimeout(PATIENCE)
        self.lines = self.socket.makefile("r")
        self.kernels = 0
        self.retired = False
        self.ahead = list(AHEAD)

    def warm(self):
        """Loads what most users load: one module at a time, since kernels wait for its answers meanwhile."""
        while self.ahead:
            self.ask({"load": self.ahead.pop(0)})

    def ask(self, request):
        with self.lock:
            try:
                self.socket.sendall(json.dumps(request).encode() + b"\n")
                line = self.lines.readline()
            except (OSError, ValueError):
                line = ""
        if not line:
            # One that hangs is ended, and its kernels with it.
            self.process.kill()
            raise Gone()
        answer = json.loads(line)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer

    def fork(self, connection_file, cwd):
        # Before it is asked: another thread may put a newer zygote in its place meanwhile.
        with self.lock:
            self.kernels += 1
        try:
            pid = self.ask({"connection_file": connection_file, "cwd": cwd})["pid"]
        except BaseException:
            self.forget(1)
            raise
        return Kernel(self, pid)

    def is_current(self):
        return self.process.poll() is None and self.installed == installed()

    def forget(self, kernels):
        """So many of its kernels ended; ends it when no other follows."""
        with self.lock:
            self.kernels -= kernels
            if self.retired and self.kernels <= 0:
                self.lines.close()
                self.socket.close()
                # It ends with its socket.
                threading.Thread(target=self.process.wait, daemon=True).start()


class Kernel:
    """A forked kernel, as the process that jupyter_client knows."""

    stdin = stdout = stderr = None

    def __init__(self, zygote, pid):
        self.zygote = zygote
        self.pid = pid
        self.returncode = None
        self.ending = threading.Lock()

    def poll(self):
        with self.ending:
            if self.returncode is None:
                try:
                    self.returncode = self.zygote.ask({"poll": self.pid})["status"]
                except Gone:
                    with suppress(OSError):
                        os.killpg(self.pid, signal.SIGKILL)
                    self.returncode = -signal.SIGKILL
                if self.returncode is not None:
                    self.zygote.forget(1)
            return self.returncode

    def wait(self):
        while self.poll() is None:
            time.sleep(LOOK)
        return self.returncode

    def send_signal(self, signum):
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


class Zygotes:
    """The zygote of now."""

    def __init__(self):
        self.lock = threading.Lock()
        self.now = None

    def current(self):
        """One that has loaded what is installed now: after an installation another one."""
        with self.lock:
            if self.now is None or not self.now.is_current():
                if self.now is not None:
                    self.now.retired = True
                    self.now.forget(0)
                self.now = Zygote()
            return self.now


ZYGOTES = Zygotes()


class Provisioner(LocalProvisioner):
    """Forks kernels of Python; starts others, and starts a Python where none can be forked."""

    async def launch_kernel(self, cmd, **kwargs):
        if self.kernel_spec.language == "python":
            cwd = kwargs.get("cwd") or os.getcwd()
            try:
                self.process = ZYGOTES.current().fork(self.parent.connection_file, cwd)
                self.pid = self.pgid = self.process.pid
                self.cwd = cwd
                return self.connection_info
            except (Gone, OSError) as error:
                print(f"a kernel was not forked: {error!r}", file=sys.stderr, flush=True)
        return await super().launch_kernel(cmd, **kwargs)


def is_current(manager):
    """Whether its kernel is a fork that lives and has what is installed now."""
    kernel = manager.provisioner and manager.provisioner.process
    return isinstance(kernel, Kernel) and kernel.poll() is None and kernel.zygote.is_current()


def provide():
    """Kernels are provided so from now on."""
    one = EntryPoint("forked", "forked:Provisioner", KernelProvisionerFactory.GROUP_NAME)
    KernelProvisionerFactory.provisioners[one.name] = one
    KernelProvisionerFactory.instance(default_provisioner_name=one.name)
