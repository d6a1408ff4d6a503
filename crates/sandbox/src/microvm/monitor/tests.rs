//! Against a fake monitor, which is named so: no host of ours runs one of the two, which need KVM. What it
//! is asked is held against shapes that were written by hand from the published API descriptions
//! (`firecracker.yaml` 1.17, `cloud-hypervisor.yaml` 0.3.0).

use super::*;

/// Writes down each request, answers as the descriptions say, and lets a machine that is started speak.
const FAKE: &str = r#"#!/usr/bin/python3
import http.server, json, os, socketserver, sys
here = os.path.dirname(os.path.abspath(__file__))
class Fake(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with open(here + "/asked", "a") as log:
            log.write(json.dumps([self.command, self.path, json.loads(body) if body else None]) + "\n")
        status, said = 204, b""
        if self.command == "GET":
            status, said = 200, json.dumps({
                "app_name": "fake", "id": "f", "state": "Not started", "vmm_version": "1.17.0",
                "build_version": "v50", "version": "50.0", "pid": 1}).encode()
        elif os.path.exists(here + "/refuse"):
            status, said = 400, json.dumps({"fault_message": "this fake refuses"}).encode()
        elif self.path in ("/actions", "/api/v1/vm.boot"):
            assert len(open("/proc/self/fd/3").read()) == 6
            with open("console", "a") as console: console.write("cofferdam-machine: no port\n")
        self.send_response(status)
        if status != 204: self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    do_GET = do_PUT = answer
class Server(socketserver.UnixStreamServer):
    def get_request(self): return super().get_request()[0], ("fake", 0)
Server(sys.argv[2], Fake).serve_forever()
"#;

/// What was said of the fake, and what it was asked.
async fn looked(monitor: Monitor, kvm: bool, refuses: bool) -> (String, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // Its user is nobody, who must find it and write down what it is asked.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, text, mode) in
        [("fake", FAKE, 0o755), ("asked", "", 0o666), ("kernel", "kernel", 0o444)]
    {
        fs::write(path(name), text).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    if refuses {
        fs::write(path("refuse"), "").unwrap();
    }
    let machine = Machine {
        kernel: path("kernel"),
        release: "6".to_owned(),
        initrd: path("kernel"),
        // The group of a device that need not be here is the root's, which the fake has no use of.
        accel: Accel::Kvm,
        tsc_khz: None,
        unshare: PathBuf::new(),
        setpriv: PathBuf::new(),
    };
    let said = look_in(monitor, &path("fake"), &path("place"), kvm.then_some(&machine)).await;
    let asked = fs::read_to_string(path("asked")).unwrap();
    (said, asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[tokio::test]
async fn firecracker_is_told_its_machine_as_its_description_says() {
    let (said, asked) = looked(Monitor::Firecracker, true, false).await;
    assert_eq!(said, "1.17.0 starts our kernel and our init; not driven by this version");
    assert_eq!(
        asked,
        [
            json!(["GET", "/", null]),
            json!(["PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": 192}]),
            json!(["PUT", "/boot-source", {
                "kernel_image_path": "/proc/self/fd/3",
                "initrd_path": "/proc/self/fd/4",
                "boot_args": KERNEL_LINE,
            }]),
            json!(["PUT", "/actions", {"action_type": "InstanceStart"}]),
        ]
    );
}

#[tokio::test]
async fn cloud_hypervisor_is_told_its_machine_as_its_description_says() {
    let (said, asked) = looked(Monitor::CloudHypervisor, true, false).await;
    assert_eq!(said, "50.0 starts our kernel and our init; not driven by this version");
    assert_eq!(
        asked,
        [
            json!(["GET", "/api/v1/vmm.ping", null]),
            json!(["PUT", "/api/v1/vm.create", {
                "cpus": {"boot_vcpus": 1, "max_vcpus": 1},
                "memory": {"size": 201_326_592},
                "payload": {
                    "kernel": "/proc/self/fd/3",
                    "initramfs": "/proc/self/fd/4",
                    "cmdline": KERNEL_LINE,
                },
                "serial": {"mode": "File", "file": "console"},
                "console": {"mode": "Off"},
            }]),
            json!(["PUT", "/api/v1/vm.boot", null]),
            json!(["PUT", "/api/v1/vmm.shutdown", null]),
        ]
    );
}

#[tokio::test]
async fn a_monitor_that_refuses_or_has_no_kvm_or_is_none_is_told_as_that() {
    let (said, asked) = looked(Monitor::Firecracker, true, true).await;
    assert_eq!(
        said,
        "1.17.0; not driven by this version; /machine-config was refused: this fake refuses"
    );
    assert_eq!(asked.len(), 2, "nothing is asked after a refusal");
    let (said, asked) = looked(Monitor::Firecracker, false, false).await;
    assert!(said.contains("without KVM it runs no machine"), "{said}");
    assert_eq!(asked.len(), 1, "no machine is started");
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    let said = look_in(Monitor::Firecracker, Path::new("/bin/false"), &place, None).await;
    assert!(said.starts_with("not driven by this version; it does not answer"), "{said}");
}
