"""The last line of a client's script."""
import os


def last():
    """Says that every check held, and ends without CPython's finalization. `pyqwest`, the HTTP library of the asynchronous client, has
    threads that still ask for the interpreter then: CPython ends them by `pthread_exit`, which aborts in their Rust frames. One request
    to a closed port, without a server of ours, ended so in 38 of 360 runs on a busy machine."""
    print("done", flush=True)
    os._exit(0)
