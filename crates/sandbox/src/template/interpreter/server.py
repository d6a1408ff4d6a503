"""The code interpreter of a sandbox: HTTP on port 49999, Jupyter kernels behind it.

    POST /execute {code, context_id, language, env_vars}  lines of JSON until `end_of_execution`
    GET, POST /contexts; DELETE /contexts/ID; POST /contexts/ID/restart; GET /health

One thread serves one connection. One execution at a time has a context (`contexts.py`). A caller who hangs up
interrupts what it started. Only programs of this sandbox and its owner reach the port: the sandbox is the boundary.
"""

import json
import os
import select
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import forked
from contexts import HOME, KERNELS, LOOK, SCOPES, Contexts, Died, Gone, Refused

PORT = 49_999
# The names that people type.
NAMES = {"python3": "python", "py": "python", "sh": "bash", "shell": "bash"}
# Bytes of a request: code is text, and envd takes files.
MAX_BODY = 4 * 1024 * 1024
# Bytes of a larger one that are read and dropped before its refusal.
MAX_DRAINED = 64 * 1024 * 1024
# Bytes of one execution's answer: more than a notebook shows. A program that prints without end is cut.
MAX_ANSWER = 64 * 1024 * 1024
# Seconds of silence after which a line shows that the connection lives.
KEEPALIVE = 5

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


CONTEXTS = Contexts()


def language_of(name):
    name = (name or "python").lower()
    name = NAMES.get(name, name)
    if name not in KERNELS:
        raise Refused(400, f"language {name!r} is not here: " + ", ".join(KERNELS))
    return name


def result(data, is_main):
    """A bundle of representations as a line."""
    line, extra = {"type": "result", "is_main_result": is_main}, {}
    for kind, value in data.items():
        field = FIELDS.get(kind)
        if field is None:
            extra[kind] = value
            continue
        if isinstance(value, list) and field not in ("json", "data", "chart"):
            value = "".join(value)
        line[field] = value
    text = line.get("text")
    # A string is shown as its content, without the quotes of its representation.
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        line["text"] = text[1:-1]
    if extra:
        line["extra"] = extra
    return line


def lines(kind, content):
    """A message of a kernel as what the clients read. Pure."""
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": time.time_ns()}
    if kind in ("display_data", "execute_result"):
        return result(content["data"], kind == "execute_result")
    if kind == "error":
        return {
            "type": "error",
            "name": content["ename"] or "Error",
            "value": content["evalue"],
            "traceback": "\n".join(content["traceback"]),
        }
    return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Seconds without a byte of a request.
    timeout = 60

    def log_message(self, *_):
        pass

    def body(self):
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            raise Refused(400, "Content-Length is not a number") from None
        if self.headers.get("Transfer-Encoding") or not 0 <= length <= MAX_BODY:
            self.close_connection = True
            # Closing on what a caller still sends would reset its connection before it has read why.
            left = min(max(length, 0), MAX_DRAINED)
            while left > 0 and (piece := self.rfile.read(min(left, 65_536))):
                left -= len(piece)
            raise Refused(413, f"a body has a length, of at most {MAX_BODY} bytes")
        text = self.rfile.read(length)
        if not text:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Refused(400, "the body is not a JSON object")
        return value

    def answer(self, status, value=None):
        bytes_ = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(bytes_)))
        self.end_headers()
        if status != 204:
            self.wfile.write(bytes_)

    def handle_one(self, route):
        try:
            route()
        except Refused as refused:
            self.answer(refused.status, {"detail": str(refused)})
        except (Gone, OSError):
            self.close_connection = True
        except Exception as error:
            print(f"{self.path}: {error!r}", file=sys.stderr, flush=True)
            self.close_connection = True

    def do_GET(self):
        self.handle_one(self.get)

    def do_POST(self):
        self.handle_one(self.post)

    def do_DELETE(self):
        self.handle_one(self.delete)

    def get(self):
        if self.path == "/health":
            return self.answer(200, "OK")
        if self.path == "/contexts":
            return self.answer(200, [context.view() for context in list(CONTEXTS.all.values())])
        raise Refused(404, "no such route")

    def post(self):
        names = self.path.strip("/").split("/")
        body = self.body()
        if names == ["execute"]:
            return self.execute(body)
        if names == ["contexts"]:
            cwd = text_of(body, "cwd") or HOME
            if not (os.path.isdir(cwd) and os.access(cwd, os.X_OK)):
                raise Refused(400, f"cwd {cwd!r} is not a directory that the kernel's user can enter")
            return self.answer(201, CONTEXTS.create(language_of(text_of(body, "language")), cwd).view())
        if len(names) == 3 and (names[0], names[2]) == ("contexts", "restart"):
            context = CONTEXTS.find(names[1])
            # What runs in it ends with its kernel.
            context.end_kernel()
            with context.turn:
                context.renew()
            CONTEXTS.find(names[1])
            return self.answer(204)
        raise Refused(404, "no such route")

    def delete(self):
        names = self.path.strip("/").split("/")
        if len(names) != 2 or names[0] != "contexts":
            raise Refused(404, "no such route")
        CONTEXTS.remove(names[1])
        self.answer(204)

    def alive(self):
        """Raises once the caller is gone; what it sends meanwhile is the next request's."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise Gone()

    def execute(self, body):
        code = text_of(body, "code")
        if code is None:
            raise Refused(400, "code is missing")
        name, language = text_of(body, "context_id"), text_of(body, "language")
        if name and language:
            raise Refused(400, "Only one of context_id or language can be provided")
        given = body.get("env_vars") or {}
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise Refused(400, "env_vars is not an object of strings")
        context = CONTEXTS.find(name) if name else CONTEXTS.of(language_of(language))
        while not context.turn.acquire(timeout=LOOK):
            self.alive()
        try:
            if context.removed:
                raise Refused(404, f"Context {context.id} not found")
            self.streamed(context, code, given)
        finally:
            context.turn.release()

    def streamed(self, context, code, given):
        scope = SCOPES[context.language](given) if given else None
        said = Answer(self)
        try:
            with context.variables(scope):
                request = context.client.execute(code, allow_stdin=False)
                try:
                    for kind, content in context.messages(request, said.alive):
                        line = lines(kind, content)
                        if line is not None:
                            said.line(line)
                except (Gone, OSError):
                    context.interrupt()
                    raise
        except Died:
            self.died(context, said)
        said.end()

    def died(self, context, said):
        if context.removed:
            why = "the context was removed"
        else:
            why = "the kernel ended: its memory ran out, or the code ended it. It is started anew, without its variables"
        try:
            said.line({"type": "error", "name": "KernelDied", "value": why, "traceback": ""})
        finally:
            if not context.removed:
                context.renew()


class Answer:
    """An answer in lines, as chunks."""

    def __init__(self, handler):
        self.handler = handler
        self.left = MAX_ANSWER
        self.last = time.monotonic()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/x-ndjson")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.flush()

    def line(self, value):
        text = json.dumps(value, default=str).encode() + b"\n"
        self.left -= len(text)
        if self.left < 0:
            why = f"the output has more than {MAX_ANSWER} bytes; write it to a file"
            self.chunk(json.dumps({"type": "error", "name": "OutputTooLarge", "value": why, "traceback": ""}).encode() + b"\n")
            self.end()
            raise Gone()
        self.chunk(text)

    def chunk(self, text):
        self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.handler.wfile.flush()
        self.last = time.monotonic()

    def alive(self):
        self.handler.alive()
        if time.monotonic() - self.last > KEEPALIVE:
            self.line({"type": "keepalive"})

    def end(self):
        self.chunk(b'{"type": "end_of_execution"}\n')
        self.handler.wfile.write(b"0\r\n\r\n")
        self.handler.wfile.flush()


def text_of(body, name):
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name} is not a string")
    return value


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # Connections that wait for a thread.
    request_queue_size = 64


def main():
    forked.provide()
    # Before the port: whoever finds it open finds a kernel.
    CONTEXTS.of("python")
    threading.Thread(target=CONTEXTS.keep_spare, daemon=True).start()
    Server(("127.0.0.1", PORT), Handler).serve_forever()


if __name__ == "__main__":
    sys.exit(main())
