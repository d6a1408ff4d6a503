"""A FAKE of OpenCode's daemon: it answers the calls that the client makes as version 1.18.33 does, without a model.

The script is in the prompt, as in scripted_model.py. The first argument is how it misbehaves: `well`, `hang`, `garbage`,
`half`, `large`, `die`, `version`, `loop`, `endless`. The first line of standard output ends with its address.
"""
import base64
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = sys.argv[1]
AUTH = "Basic " + base64.b64encode(b"u:p").decode()
SCRIPT = re.compile(r"\[\[steps: (\[.*?\])\]\]", re.S)
SESSIONS, CHILDREN, USERS, TURNS, BUSY, ABORTS, ASKED = {}, {}, {}, {}, set(), {}, {}
HISTORY, LISTENERS, LOCK = [], [], threading.RLock()


def emit(kind, properties):
    with LOCK:
        session = properties["sessionID"]
        HISTORY.append({"id": "evt", "aggregate_id": session, "seq": sum(r["aggregate_id"] == session for r in HISTORY), "type": kind + ".1",
                        "data": json.loads(json.dumps(properties))})
        for listener in LISTENERS:
            listener.put({"payload": {"type": kind, "properties": properties}})


class Turn:
    """One prompt's turn, run once; everyone who posts its ids again waits for its end."""

    def __init__(self, session, body):
        self.session, self.body, self.done, self.n = session, body, threading.Event(), 0
        self.info, self.parts = None, []
        ABORTS[session] = threading.Event()

    def message(self):
        self.n += 1
        self.parts = []
        self.info = {"id": f"msg_answer{id(self)}{self.n}", "sessionID": self.session, "role": "assistant", "parentID": self.body["messageID"],
                     "tokens": {"input": 0, "output": 0}, "time": {"created": time.time()}}
        emit("message.updated", {"sessionID": self.session, "info": self.info})

    def part(self, **part):
        part = {"id": f"prt_{id(self)}{self.n}{len(self.parts)}", "sessionID": self.session, "messageID": self.info["id"], **part}
        self.parts.append(part)
        emit("message.part.updated", {"sessionID": self.session, "part": part})

    def end(self, **more):
        self.info.update(more)
        self.info["time"]["completed"] = time.time()
        if "error" not in more or more["error"]["name"] == "StructuredOutputError":
            self.info["tokens"] = {"input": 900, "output": 14}
        emit("message.updated", {"sessionID": self.session, "info": self.info})

    def run(self):
        try:
            self.steps()
        finally:
            with LOCK:
                BUSY.discard(self.session)
            emit("session.idle", {"sessionID": self.session})
            self.done.set()

    def steps(self):
        steps = json.loads(SCRIPT.search(self.body["parts"][0]["text"]).group(1))
        plan = self.body["agent"] == "plan"
        aborted = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
        for step in steps:
            self.message()
            if "fail" in step:
                return self.end(error={"name": "APIError", "data": {"message": "the scripted model refuses this key"}})
            if "text" in step:
                self.part(type="text", text=step["text"])
                if "format" in self.body:
                    return self.end(finish="stop", error={"name": "StructuredOutputError", "data": {"message": "Model did not produce structured output"}})
                return self.end(finish="stop")
            tool, given = step.get("tool") or ["bash", {"command": step["sh"]}]
            if tool == "StructuredOutput":
                self.part(type="tool", tool=tool, state={"status": "completed", "input": given})
                return self.end(finish="tool-calls", structured=given)
            if tool != "bash" or plan:
                self.part(type="tool", tool="invalid", state={"status": "completed", "input": given})
                self.end(finish="tool-calls")
                continue
            if given["command"].startswith("touch asked"):
                name, answer = f"per_{id(self)}{self.n}", queue.Queue()
                ASKED[name] = (self.session, answer)
                emit("permission.asked", {"sessionID": self.session, "id": name})
                reply = answer.get()
                if reply == "reject":
                    self.part(type="tool", tool=tool, state={"status": "error", "input": given, "error": "The user rejected permission to use this specific tool call."})
                    return self.end(finish="tool-calls")
            running = subprocess.Popen(["sh", "-c", given["command"]], cwd=SESSIONS[self.session], stdout=subprocess.DEVNULL)
            while running.poll() is None and not ABORTS[self.session].wait(0.02):
                pass
            running.kill()
            running.wait()
            self.part(type="tool", tool=tool, state={"status": "completed", "input": given})
            if ABORTS[self.session].is_set():
                return self.end(error=aborted)
            self.end(finish="tool-calls")


def looping(session):
    for n in range(500):
        emit("message.part.updated", {"sessionID": session, "part": {"id": f"prt_{n}", "sessionID": session, "messageID": "msg_x", "type": "tool", "tool": "bash",
             "state": {"status": "running", "input": {"command": "ls"}}}})
    emit("session.updated", {"sessionID": session})


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def missing(self):
        self.say(404, {"name": "NotFoundError", "data": {"message": "not found"}})

    def misbehave(self):
        """Whether it did: as its mode says, to every call but the events."""
        if MODE == "hang":
            time.sleep(3600)
        elif MODE == "die":
            os._exit(1)
        elif MODE in ("garbage", "half", "large", "endless"):
            self.send_response(200)
            if MODE == "half":
                self.send_header("content-length", "1000")
            elif MODE != "endless":
                self.send_header("content-length", str(7 if MODE == "garbage" else 100 << 20))
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            if MODE == "half":
                self.wfile.write(b'{"healthy":true,"ver')
            elif MODE == "garbage":
                self.wfile.write(b"garbage")
            else:
                for _ in range(1600):
                    self.wfile.write(b"[" * 65536)
        else:
            return False
        return True

    def events(self):
        listener = queue.Queue()
        with LOCK:
            LISTENERS.append(listener)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if MODE == "half":
            return self.wfile.write(b'data: {"payload":{"ty')
        if MODE == "garbage":
            return self.wfile.write(b"data: garbage\n\n")
        if MODE in ("large", "endless"):
            for _ in range(1600):
                self.wfile.write(b"x" * 65536)
            return None
        self.wfile.write(b'data: {"payload":{"type":"server.connected","properties":{}}}\n\n')
        self.wfile.flush()
        while True:
            try:
                event = listener.get(timeout=3600 if MODE == "hang" else 10)
            except queue.Empty:
                event = {"payload": {"type": "server.heartbeat", "properties": {}}}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def turn(self, session, body):
        with LOCK:
            known = TURNS.get(body["messageID"])
            if known:
                return known
            turn = TURNS[body["messageID"]] = Turn(session, body)
            BUSY.add(session)
            emit("message.updated", {"sessionID": session, "info": {"id": body["messageID"], "role": "user"}})
        if MODE == "loop":
            threading.Thread(target=looping, args=(session,), daemon=True).start()
        else:
            threading.Thread(target=turn.run, daemon=True).start()
        return turn

    def handle_one(self, method):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("authorization") != AUTH:
            return self.say(401)
        if self.path == "/global/event":
            return self.events()
        if self.misbehave():
            return None
        body = json.loads(raw) if raw else {}
        parts = self.path.strip("/").split("/")
        if self.path == "/global/health":
            return self.say(200, {"healthy": True, "version": "1.99.0" if MODE == "version" else "1.18.33"})
        if self.path == "/api/session":
            SESSIONS.setdefault(body["id"], body["location"]["directory"])
            return self.say(200, {"data": {"id": body["id"]}})
        if self.path == "/session" and method == "GET":
            children = [child for all in CHILDREN.values() for child in all]
            return self.say(200, [{"id": session} for session in SESSIONS] + children)
        if self.path == "/session" and method == "POST" and "parentID" not in body:
            SESSIONS["ses_beside"] = "/"
            emit("session.created", {"sessionID": "ses_beside"})
            return self.say(200, {"id": "ses_beside"})
        if self.path == "/session" and method == "POST":
            CHILDREN.setdefault(body["parentID"], []).append({"id": "ses_child"})
            return self.say(200, {"id": "ses_child"})
        if self.path == "/session/status":
            return self.say(200, {session: {"type": "busy"} for session in BUSY})
        if self.path == "/sync/history":
            with LOCK:
                return self.say(200, HISTORY)
        if self.path in ("/permission", "/question"):
            asked = ASKED.items() if self.path == "/permission" else []
            return self.say(200, [{"id": name, "sessionID": session, "permission": "bash"} for name, (session, _) in asked])
        if parts[0] == "permission":
            known = ASKED.pop(parts[1], None)
            if not known:
                return self.missing()
            known[1].put(body["reply"])
            return self.say(200, True)
        if parts[0] != "session":
            return self.missing()
        session, rest = parts[1], parts[2:]
        if rest == ["abort"]:
            if session in ABORTS:
                ABORTS[session].set()
            return self.say(200, True)
        if session not in SESSIONS or (rest[1:] and rest[1] not in TURNS):
            return self.missing()
        if not rest and method == "DELETE":
            return self.say(200, bool(SESSIONS.pop(session)))
        if not rest:
            return self.say(200, {"id": session})
        if rest == ["children"]:
            return self.say(200, CHILDREN.get(session, []))
        if rest[1:]:
            return self.say(200, {"info": {"id": rest[1], "role": "user"}, "parts": []})
        if body["model"]["modelID"] != "scripted":
            return self.say(500, {"name": "UnknownError", "data": {"message": "Unexpected server error. Check server logs for details."}})
        turn = self.turn(session, body)
        if rest == ["prompt_async"]:
            return self.say(204)
        turn.done.wait()
        return self.say(200, {"info": turn.info, "parts": turn.parts})

    def do_GET(self):
        self.handle_one("GET")

    def do_DELETE(self):
        self.handle_one("DELETE")

    def do_POST(self):
        self.handle_one("POST")

    def do_PATCH(self):
        self.handle_one("PATCH")


server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
server.daemon_threads = True
print(f"the FAKE daemon listens on http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
