"""The contexts of the code interpreter: each is one Jupyter kernel with its working directory.

A kernel of Python that has begun waits for the next context, which has it at once. `forked.py` makes them.
"""

import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from queue import Empty

import forked
from jupyter_client.manager import KernelManager

HOME = os.environ.get("HOME", "/home/user")
SOCKETS = tempfile.mkdtemp(prefix="interpreter-")
# Kernels by language, as E2B's clients call them.
KERNELS = {"python": "python3", "bash": "bash"}
# A kernel has some 25 MiB of its own, one that is not forked 60; so many, idle, leave a quarter of the template's memory
# to what they run.
MAX_CONTEXTS = 12
# Seconds: a kernel takes one, on a loaded machine ten times that.
START_PATIENCE = 30
# Seconds between two looks at a kernel that begins; and until it is asked once more whether it is there.
START_LOOK = 0.002
ASK_AGAIN = 0.3
# Seconds that the user's code has the processors after a context was taken, until the next kernel is made.
SPARE_PAUSE = 0.1
# Seconds that an interrupted kernel has before it is started anew.
INTERRUPT_PATIENCE = 5
# How often a caller's connection is looked at while its code is silent.
LOOK = 0.1


class Refused(Exception):
    """A request that gets this status and these words."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Gone(Exception):
    """The caller hung up."""


class Died(Exception):
    """The kernel ended."""


class Context:
    """A kernel with its working directory."""

    def __init__(self, language, cwd, on_lost):
        self.id = str(uuid.uuid4())
        self.on_lost = on_lost
        self.language = language
        self.cwd = cwd
        self.turn = threading.Lock()
        self.removed = False
        self.manager = None
        self.client = None

    def view(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    def start(self):
        # Over sockets in a directory, not ports: the ports of the sandbox are its user's.
        sockets = os.path.join(SOCKETS, self.id[:8])
        self.manager = KernelManager(kernel_name=KERNELS[self.language], transport="ipc", ip=sockets)
        self.manager.start_kernel(cwd=self.cwd)
        self.connect()

    def connect(self):
        until = time.monotonic() + START_PATIENCE

        def alive():
            if not self.manager.is_alive():
                raise RuntimeError("it ended at once")
            if time.monotonic() > until:
                raise RuntimeError(f"it did not answer within {START_PATIENCE} s")

        # Who connects to a socket that is not there yet tries again a tenth of a second later.
        told = self.manager.get_connection_info()
        names = ("shell_port", "stdin_port", "control_port", "iopub_port", "hb_port")
        wanted = [f"{told['ip']}-{told[name]}" for name in names]
        while not all(os.path.exists(path) for path in wanted):
            alive()
            time.sleep(START_LOOK)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        while not self.answers():
            alive()

    def answers(self):
        """Whether the kernel says on every channel that it is there."""
        until = time.monotonic() + ASK_AGAIN

        def alive():
            if time.monotonic() > until:
                raise Died()

        with suppress(Died):
            for _ in self.messages(self.client.kernel_info(), alive):
                pass
            return True
        return False

    def enter(self, cwd):
        """Makes one that waited a context of this directory, or says that it cannot be. The caller has the turn."""
        if not forked.is_current(self.manager):
            return False
        # In names of its own: the user has none yet.
        code = f"import os; os.chdir({cwd!r}); get_ipython().user_ns['_dh'][:] = [{cwd!r}]"
        try:
            is_there = self.quietly(f"exec({code!r}, {{}})")
        except (Died, RuntimeError):
            return False
        if is_there:
            self.cwd = cwd
        return is_there

    def restart(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True, restart=True)
        # The new kernel's sockets are told from the old one's.
        self.manager.cleanup_ipc_files()
        self.manager.start_kernel(cwd=self.cwd)
        self.connect()

    def end_kernel(self):
        """Kills the kernel: who waits for it finds it dead. Sockets are closed only by who has the turn."""
        with suppress(Exception):
            self.manager.signal_kernel(signal.SIGKILL)

    def stop(self):
        """Ends it for good. The caller has the turn."""
        self.removed = True
        self.discard()

    def discard(self):
        with suppress(Exception):
            self.client.stop_channels()
        with suppress(Exception):
            self.manager.shutdown_kernel(now=True)

    def renew(self):
        """Starts the kernel anew; a context whose kernel does not start is removed. The caller has the turn."""
        try:
            self.restart()
        except Exception as error:
            print(f"a kernel did not start anew: {error!r}", file=sys.stderr, flush=True)
            self.on_lost(self)
            self.stop()

    def messages(self, request, alive):
        """What the kernel says about a request, until it is idle again. `alive()` raises where nobody listens."""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=LOOK)
            except Empty:
                alive()
                if not self.manager.is_alive():
                    raise Died() from None
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                self.forget_replies()
                return
            yield kind, content

    def forget_replies(self):
        """What the kernel replied beside what it published: nothing of it is shown."""
        try:
            while True:
                self.client.get_shell_msg(timeout=0)
        except Empty:
            pass

    def quietly(self, code):
        """Runs code of ours; its words are dropped. Whether it did not fail."""
        request = self.client.execute(code, silent=True, store_history=False, allow_stdin=False)
        until = time.monotonic() + INTERRUPT_PATIENCE

        def alive():
            if time.monotonic() > until:
                raise Died()

        return all(kind != "error" for kind, _ in list(self.messages(request, alive)))

    def interrupt(self):
        """Ends what runs; a kernel that does not listen is started anew."""
        try:
            self.manager.interrupt_kernel()
            self.quietly("" if self.language == "python" else ":")
        except (Died, RuntimeError):
            self.renew()

    @contextmanager
    def variables(self, scope):
        """The variables of one execution, which are as before afterwards."""
        if scope is None:
            yield
            return
        set_up, restore = scope
        self.quietly(set_up)
        try:
            yield
        finally:
            if self.manager.is_alive():
                self.quietly(restore)


def python_scope(given):
    # In names of its own: the user's variables stay as they are.
    before = (
        f"import builtins, os; given = {given!r}; builtins._cofferdam_before = {{n: os.environ.get(n) for n in given}}\n"
        "os.environ.update(given)"
    )
    after = (
        "import builtins, os\nfor name, value in builtins.__dict__.pop('_cofferdam_before', {}).items():\n"
        "    os.environ.pop(name, None)\n    if value is not None:\n        os.environ[name] = value\n"
    )
    return f"exec({before!r}, {{}})", f"exec({after!r}, {{}})"


def bash_scope(given):
    def quoted(text):
        return "'" + text.replace("'", "'\\''") + "'"

    before, after = [], []
    for name, value in given.items():
        if not name.isidentifier():
            raise Refused(400, f"env_vars: {name!r} is not a name of bash")
        kept = f"__cofferdam_{name}"
        before.append(f"[ -z ${{{name}+x}} ] || {kept}=${name}; export {name}={quoted(value)}")
        after.append(f"if [ -z ${{{kept}+x}} ]; then unset {name}; else {name}=${kept}; unset {kept}; fi")
    return "; ".join(before), "; ".join(after)


SCOPES = {"python": python_scope, "bash": bash_scope}


class Contexts:
    """Every context, and which of them answers where none is named."""

    def __init__(self):
        self.lock = threading.Lock()
        self.all = {}
        self.default = {}
        self.starting = threading.Lock()
        self.spare = None
        self.wanted = threading.Event()

    def create(self, language, cwd):
        context = Context(language, cwd, self.lost)
        with self.lock:
            if len(self.all) >= MAX_CONTEXTS:
                raise Refused(429, f"{MAX_CONTEXTS} contexts are open; remove one")
            if language == "python" and self.spare is not None:
                context, self.spare = self.spare, None
            # Before anybody can find it.
            context.turn.acquire()
            self.all[context.id] = context
        try:
            if context.client is not None and not context.enter(cwd):
                context.discard()
                context.client = None
            if context.client is None:
                context.cwd = cwd
                context.start()
        except Exception as error:
            context.turn.release()
            self.remove(context.id)
            raise Refused(500, f"the {language} kernel did not start: {error}") from error
        context.turn.release()
        self.wanted.set()
        return context

    def lost(self, context):
        """One whose kernel did not start anew."""
        self.all.pop(context.id, None)

    def keep_spare(self):
        """Makes a kernel of Python for the next context, whenever the last one was taken."""
        while self.wanted.wait():
            time.sleep(SPARE_PAUSE)
            self.wanted.clear()
            if self.spare is not None:
                continue
            try:
                forked.ZYGOTES.current().warm()
                context = Context("python", HOME, self.lost)
                context.start()
                self.spare = context
            except Exception as error:  # the next context starts its own
                print(f"no kernel waits: {error!r}", file=sys.stderr, flush=True)

    def of(self, language):
        with self.starting:
            found = self.all.get(self.default.get(language))
            if found is None:
                found = self.create(language, HOME)
                self.default[language] = found.id
            return found

    def find(self, name):
        found = self.all.get(name)
        if found is None:
            raise Refused(404, f"Context {name} not found")
        return found

    def remove(self, name):
        with self.lock:
            context = self.all.pop(name, None)
        if context is None:
            raise Refused(404, f"Context {name} not found")
        context.removed = True
        context.end_kernel()
        with context.turn:
            context.stop()
