"""A scripted model on loopback: chat completions, Responses and Messages, streamed as SSE.

A prompt carries its script: `[[steps: [{"sh": "ls"}, {"write": ["a.txt", "one"]}, {"text": "done"}]]]`. The answer to a request is
the step whose number is the count of tool results in it, so that the model keeps no state. `{"wait": S}` before a step's answer
delays it; `{"fail": 401}` answers with that status; `{"until": [PIECE, ..]}` is words until a
request holds the pieces together, which the script itself does not. The first line of standard output is the address; each request is one JSON line in the file that the first argument
names.
"""
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What each answer claims to have taken: read (of these from a cache) and written.
READ, CACHED, WRITTEN = 1000, 100, 17
SCRIPT = re.compile(r"\[\[steps: (\[.*?\])\]\]", re.S)
LOG = open(sys.argv[1], "a", buffering=1)
LOCK = threading.Lock()


def text_of(body):
    """Every text of a request, as its author wrote it."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, list):
        for item in body:
            yield from text_of(item)
    elif isinstance(body, dict):
        for item in body.values():
            yield from text_of(item)


def script_of(items):
    for text in text_of(items):
        found = SCRIPT.search(text)
        if found:
            return json.loads(found.group(1))
    return [{"text": "no script"}]


def results(items):
    """How many tool results a conversation holds."""
    count = 0
    for item in items:
        if item.get("type", "").endswith("call_output") or item.get("role") == "tool":
            count += 1
        elif isinstance(item.get("content"), list):
            count += sum(part.get("type") == "tool_result" for part in item["content"] if isinstance(part, dict))
    return count


def named(tools):
    return {(tool.get("function") or tool).get("name") or tool.get("type"): tool for tool in tools or []}


def patch(path, text):
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    return f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"


def call_of(step, tools, workdir="/work"):
    """The step as a call of a tool that the agent has: its name and its input; None where it has none."""
    if "sh" in step:
        for name, key in (("Bash", "command"), ("bash", "command"), ("shell_command", "command"), ("exec_command", "cmd")):
            if name in tools:
                more = {"description": "a step"} if name in ("Bash", "bash") else {}
                return name, {key: step["sh"], **more}
        return ("shell", {"command": ["bash", "-lc", step["sh"]]}) if "shell" in tools else ("Bash", {"command": step["sh"]})
    if "write" in step:
        path, text = step["write"]
        if "Write" in tools:
            return "Write", {"file_path": f"{workdir}/{path}", "content": text}
        if "write" in tools:
            return "write", {"filePath": f"{workdir}/{path}", "content": text}
        if "apply_patch" in tools:
            return "apply_patch", patch(path, text)
        if "Bash" in tools or "bash" in tools or "edit" in tools:
            return "Write", {"file_path": f"{workdir}/{path}", "content": text}
        quoted = patch(path, text)
        name = "shell_command" if "shell_command" in tools else "exec_command"
        return name, {"command" if name == "shell_command" else "cmd": f"apply_patch <<'EOF'\n{quoted}EOF"}
    if "tool" in step:
        return step["tool"]
    return None


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def plain(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def say(self, data, event=None):
        head = f"event: {event}\n" if event else ""
        self.wfile.write(f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self):
        self.plain(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}], "models": []})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(raw)
        except ValueError:
            return self.plain(200, {})
        path = self.path.split("?")[0]
        items = body.get("messages") or body.get("input") or []
        items = items if isinstance(items, list) else [{"role": "user", "content": items}]
        if path.endswith("/count_tokens"):
            return self.plain(200, {"input_tokens": READ})
        tools = named(body.get("tools"))
        steps, at = script_of(items), results(items)
        with LOCK:
            LOG.write(json.dumps({"path": path, "tools": sorted(map(str, tools)), "step": at, "script": steps}) + "\n")
        # Without tools it is a title or a summary that is asked for.
        step = steps[min(at, len(steps) - 1)] if tools or path.endswith("/responses") else {"text": "title"}
        if "".join(step.get("until", [])) not in raw.decode():
            step = {"text": "not yet"}
        time.sleep(step.get("wait", 0))
        if "fail" in step:
            return self.plain(step["fail"], {"type": "error", "error": {"type": "authentication_error", "code": "invalid_api_key", "message": "the scripted model refuses this key"}})
        call = call_of(step, tools)
        text = step.get("text", "" if call else "done")
        if path.endswith("/responses"):
            self.respond(call, text, at)
        elif path.endswith("/messages"):
            self.messages(call, text, at, body)
        else:
            self.chat(call, text, at, body)

    def respond(self, call, text, at):
        self.begin()
        rid = f"resp_{time.time_ns()}"
        self.say({"type": "response.created", "response": {"id": rid}}, "response.created")
        items = []
        if text:
            items.append({"type": "message", "role": "assistant", "id": f"msg_{at}", "content": [{"type": "output_text", "text": text}]})
        if call:
            name, given = call
            if isinstance(given, str):
                items.append({"type": "custom_tool_call", "id": f"ctc_{at}", "call_id": f"call_{at}", "name": name, "input": given})
            else:
                items.append({"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "name": name, "arguments": json.dumps(given)})
        for index, item in enumerate(items):
            self.say({"type": "response.output_item.added", "output_index": index, "item": item}, "response.output_item.added")
            self.say({"type": "response.output_item.done", "output_index": index, "item": item}, "response.output_item.done")
        usage = {"input_tokens": READ, "input_tokens_details": {"cached_tokens": CACHED}, "output_tokens": WRITTEN,
                 "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": READ + WRITTEN}
        self.say({"type": "response.completed", "response": {"id": rid, "output": items, "usage": usage}}, "response.completed")

    def messages(self, call, text, at, body):
        blocks = []
        if text:
            blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": text}))
        if call:
            name, given = call
            blocks.append(({"type": "tool_use", "id": f"toolu_{time.time_ns()}", "name": name, "input": {}},
                           {"type": "input_json_delta", "partial_json": json.dumps(given)}))
        usage = {"input_tokens": READ - CACHED, "cache_read_input_tokens": CACHED, "cache_creation_input_tokens": 0, "output_tokens": 1}
        message = {"id": f"msg_{time.time_ns()}", "type": "message", "role": "assistant", "model": body.get("model"),
                   "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        stop = "tool_use" if call else "end_turn"
        if not body.get("stream"):
            message.update(content=[{**start, **({"text": text} if start["type"] == "text" else {"input": call[1]})} for start, _ in blocks],
                           stop_reason=stop, usage={**usage, "output_tokens": WRITTEN})
            return self.plain(200, message)
        self.begin()
        self.say({"type": "message_start", "message": message}, "message_start")
        for index, (start, delta) in enumerate(blocks):
            self.say({"type": "content_block_start", "index": index, "content_block": start}, "content_block_start")
            self.say({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
            self.say({"type": "content_block_stop", "index": index}, "content_block_stop")
        self.say({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": WRITTEN}}, "message_delta")
        self.say({"type": "message_stop"}, "message_stop")

    def chat(self, call, text, at, body):
        usage = {"prompt_tokens": READ, "completion_tokens": WRITTEN, "total_tokens": READ + WRITTEN,
                 "prompt_tokens_details": {"cached_tokens": CACHED}, "completion_tokens_details": {"reasoning_tokens": 3}}
        calls = []
        if call:
            name, given = call
            calls = [{"index": 0, "id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}]
        finish = "tool_calls" if call else "stop"
        head = {"id": f"chatcmpl-{time.time_ns()}", "created": 0, "model": body.get("model"), "object": "chat.completion.chunk"}
        message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        if not body.get("stream"):
            return self.plain(200, {**head, "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage})
        self.begin()
        self.say({**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]})
        self.say({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        self.say({**head, "choices": [], "usage": usage})
        self.say("[DONE]")


server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
server.daemon_threads = True
print(f"127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
