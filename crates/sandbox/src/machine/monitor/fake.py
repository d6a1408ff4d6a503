#!/usr/bin/python3
"""A fake monitor, which is no Firecracker and no Cloud Hypervisor: it holds what it is asked against the
shapes in `published.json`, and in their place starts QEMU, where its directory says how.

Its directory has: shapes, as a monitor of which name it stands there; asked, which it writes; and
perhaps mode, which says how it fails, and qemu.json, which says how a machine is started."""

import http.server
import json
import os
import socketserver
import subprocess
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))


def text(name, otherwise=""):
    path = os.path.join(here, name)
    return open(path).read() if os.path.exists(path) else otherwise


shapes = json.loads(text("shapes"))
mode = text("mode")
told = {}
running = []
kinds = {"int": int, "bool": bool, "str": str}


def fault(shape, said, at):
    """What is wrong with it, or None."""
    if isinstance(shape, str):
        is_flag = isinstance(said, bool) and shape != "bool"
        return None if isinstance(said, kinds[shape]) and not is_flag else f"{at} is no {shape}"
    if isinstance(shape, list):
        if not isinstance(said, list):
            return f"{at} is no list"
        faults = [fault(shape[0], one, f"{at}[]") for one in said]
        return next(filter(None, faults), None)
    if shape is None:
        return None if said is None else f"{at} has a body"
    if not isinstance(said, dict):
        return f"{at} is no object"
    for name in shape["required"]:
        if name not in said:
            return f"{at} has no {name}"
    fields = {**shape["required"], **shape["optional"]}
    for name, value in said.items():
        if name not in fields:
            return f"{at} has an unknown {name}"
        found = fault(fields[name], value, f"{at}.{name}")
        if found:
            return found
    return None


def config():
    """Of the machine that was told, whoever it was told to; and what must hold between its fields."""
    if "PUT /machine-config" in told or "PUT /actions" in told:
        size, boot = told.get("PUT /machine-config"), told.get("PUT /boot-source")
        disk, vsock = told.get("PUT /drives/disk"), told.get("PUT /vsock")
        if not (size and boot and disk and vsock):
            return None, "it is started before it is described"
        if not 1 <= size["vcpu_count"] <= 32 or disk["drive_id"] != "disk" or vsock["guest_cid"] < 3:
            return None, "a number is out of its range"
        return {
            "kernel": boot["kernel_image_path"], "initrd": boot["initrd_path"], "line": boot["boot_args"],
            "mem": size["mem_size_mib"], "cpus": size["vcpu_count"], "disk": disk["socket"],
            "stream": vsock["uds_path"], "cid": vsock["guest_cid"], "file": None,
        }, None
    whole = told.get("PUT /api/v1/vm.create")
    if not whole:
        return None, "it is started before it is described"
    zones = whole["memory"].get("zones", [])
    if whole["memory"]["size"] != 0 or len(zones) != 1 or not zones[0]["shared"]:
        return None, "a disk of vhost-user needs shared memory, and zones a size of 0"
    cpus = whole["cpus"]
    if not 1 <= cpus["boot_vcpus"] <= cpus["max_vcpus"] or whole["vsock"]["cid"] < 3:
        return None, "a number is out of its range"
    if not whole["disks"][0]["vhost_user"]:
        return None, "its disk is no disk of vhost-user"
    payload = whole["payload"]
    return {
        "kernel": payload["kernel"], "initrd": payload["initramfs"], "line": payload["cmdline"],
        "mem": zones[0]["size"] // 1024 // 1024, "cpus": cpus["boot_vcpus"],
        "disk": whole["disks"][0]["vhost_socket"], "stream": whole["vsock"]["socket"],
        "cid": whole["vsock"]["cid"], "file": zones[0]["file"],
    }, None


def start():
    """What went wrong, or None."""
    wanted, wrong = config()
    if wrong or not os.path.exists(os.path.join(here, "qemu.json")):
        return wrong
    how = json.loads(text("qemu.json"))
    memory = f"memory-backend-memfd,id=m,share=on,size={wanted['mem']}M"
    if wanted["file"]:
        memory = f"memory-backend-file,id=m,share=on,size={wanted['mem']}M,mem-path={wanted['file']}"
    command = [how["qemu"], "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-machine", "microvm,memory-backend=m", "-object", memory, "-accel", "tcg", "-cpu", "max"]
    command += ["-m", f"{wanted['mem']}M", "-smp", str(wanted["cpus"])]
    command += ["-kernel", wanted["kernel"], "-initrd", wanted["initrd"]]
    command += ["-append", wanted["line"] + how["line"], "-serial", "stdio"]
    command += ["-chardev", f"socket,id=d,path={wanted['disk']}", "-device", "vhost-user-blk,chardev=d"]
    if how["vsock"]:
        vm = f"guest-cid={wanted['cid']},socket=device,uds-path={wanted['stream']}"
        subprocess.Popen([how["vsock"], "--vm", vm], stdout=sys.stderr)
        while not os.path.exists("device"):
            time.sleep(0.01)
        command += ["-chardev", "socket,id=a,path=device", "-device", "vhost-user-vsock-device,chardev=a"]
    else:
        # In the place of a stream, whose family needs a device that few hosts have, a port to the same end.
        command += ["-chardev", f"socket,id=a,path={wanted['stream']}_{how['port']}"]
        command += ["-device", "virtio-serial-device,max_ports=2"]
        command += ["-device", f"virtserialport,chardev=a,name={how['name']}"]
    running.append(subprocess.Popen(command, close_fds=False, stdin=subprocess.DEVNULL))
    return None


class Fake(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        name, said = f"{self.command} {self.path}", json.loads(body) if body else None
        with open(os.path.join(here, "asked"), "a") as log:
            log.write(json.dumps([self.command, self.path, said]) + "\n")
        if self.command == "GET":
            return self.send(200, {
                "app_name": "fake", "id": "f", "state": "Not started", "vmm_version": "1.17.0",
                "build_version": "v50", "version": "50.0", "pid": 1,
            })
        if mode == "die":
            print("this fake dies", file=sys.stderr, flush=True)
            os._exit(1)
        if mode == "hang":
            time.sleep(3_600)
        if mode == "refuse":
            return self.send(400, {"fault_message": "this fake refuses"})
        wrong = f"{name} is not known" if name not in shapes else fault(shapes[name], said, name)
        if not wrong and running:
            wrong = "its machine runs already"
        if not wrong:
            told[name] = said
            if name in ("PUT /actions", "PUT /api/v1/vm.boot"):
                wrong = start()
        if wrong:
            return self.send(400, {"fault_message": wrong})
        return self.send(204, None)

    def send(self, status, said):
        whole = b"" if said is None else json.dumps(said).encode()
        if mode == "malformed":
            whole = b"{\"version\": \"1"
        self.send_response(status)
        if whole:
            self.send_header("content-length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)

    do_GET = do_PUT = answer


class Server(socketserver.UnixStreamServer):
    def get_request(self):
        return super().get_request()[0], ("fake", 0)


if mode == "early":
    sys.exit("this fake does not start")
if mode == "deaf":
    time.sleep(3_600)
Server(sys.argv[2], Fake).serve_forever()
