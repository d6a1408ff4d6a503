"""What the programs beside this file share: a check that holds or ends them, and requests to a port of a sandbox."""
import http.client
import os
import sys
import time
import urllib.parse


def check(name, good, said=None):
    """Says that it holds, or ends the program with what was said instead."""
    if not good:
        raise AssertionError(f"{name}: {said!r}"[:400])
    print(name, flush=True)


def fetched(host, path="/", seconds=20):
    """What a service inside answers, once it does: its host is told to the one address of all sandboxes, as a proxy would."""
    address = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"]).netloc
    until = time.monotonic() + seconds
    while True:
        connection = http.client.HTTPConnection(address, timeout=10)
        try:
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status == 200 or time.monotonic() > until:
            return text
        time.sleep(0.2)


def done():
    """The last line of a program. The clients' HTTP library has threads that CPython would end in the middle of their work, so
    nothing is finalized: see tests/tests/e2b/last.py."""
    print("done", flush=True)
    sys.stderr.flush()
    os._exit(0)
