"""The cluster that benches/kubernetes measures with, and a node in it that runs nothing: its pods, their output and their agents
are played. Calls the API servers of the cluster and of Kiln; listens on loopback."""

import base64
import datetime
import http.client
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

NAMESPACE = "kiln-jobs"
NODE = "played"


class Api:
    """The cluster's API, as its administrator."""

    def __init__(self, rig):
        text = (Path(rig) / "admin.kubeconfig").read_text()
        word = lambda name: text.split(f"{name}: ", 1)[1].split("\n", 1)[0].strip('"{}')
        self.token = word("token").strip('"')
        self.address = urlsplit(text.split('server: "', 1)[1].split('"', 1)[0])
        self.context = ssl.create_default_context(cafile=str(Path(rig) / "pki/ca.crt"))
        self.local = threading.local()

    def ask(self, method, path, body=None, kind="application/json"):
        """The answer to a request, as JSON if it is that."""
        for again in (True, False):
            if not hasattr(self.local, "connection"):
                self.local.connection = http.client.HTTPSConnection(self.address.netloc, context=self.context, timeout=60)
            connection = self.local.connection
            headers = {"authorization": f"Bearer {self.token}", "content-type": kind}
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError):
                # It was closed meanwhile.
                connection.close()
                if not again:
                    raise
        if answer.status >= 400:
            raise LookupError(f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text) if text[:1] == b"{" else text.decode()


class Played:
    """A node whose pods run as soon as they are there."""

    def __init__(self, api, arch, boot, certificate, agent):
        self.api, self.agent, self.seen = api, agent, set()
        self.ends = threading.Event()

        class Kubelet(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                usage = {"memory_peak": 1 << 30, "cpu": {"secs": 9, "nanos": 0}, "disk": 1 << 30, "inodes": 9, "oom_kills": 0}
                text = (json.dumps({"usage": usage}) + "\n").encode()
                self.send_response(200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        kubelet = ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
        kubelet.socket = tls.wrap_socket(kubelet.socket, server_side=True)
        threading.Thread(target=kubelet.serve_forever, daemon=True).start()

        room = {"cpu": "4000", "memory": "64Ti", "ephemeral-storage": "500Ti", "pods": "5000"}
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = lambda kind, status: {"type": kind, "status": status, "reason": "Played", "lastHeartbeatTime": now,
                                          "lastTransitionTime": now}
        api.ask("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", self.lease())
        api.ask("POST", "/api/v1/nodes", {
            "metadata": {"name": NODE, "labels": {
                "kubernetes.io/arch": arch, "kubernetes.io/os": "linux", "kubernetes.io/hostname": NODE,
                "katacontainers.io/kata-runtime": "true"}},
            "status": {
                "capacity": room, "allocatable": room,
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.server_address[1]}},
                "conditions": [condition("Ready", "True"), condition("MemoryPressure", "False"), condition("DiskPressure", "False")],
                "nodeInfo": {"architecture": arch, "operatingSystem": "linux", "bootID": boot, "machineID": "", "systemUUID": "",
                             "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "containerd://0",
                             "kubeletVersion": "v1.20.2", "kubeProxyVersion": "v1.20.2"}}})
        threading.Thread(target=self.renew, daemon=True).start()
        threading.Thread(target=self.run, daemon=True).start()

    def lease(self):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"metadata": {"name": NODE, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": now}}

    def renew(self):
        while not self.ends.wait(5):
            self.api.ask("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}", self.lease(),
                         "application/merge-patch+json")

    def run(self):
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        while not self.ends.wait(0.5):
            for pod in self.api.ask("GET", f"{path}?fieldSelector=spec.nodeName%3D{NODE}")["items"]:
                name = pod["metadata"]["name"]
                if "deletionTimestamp" in pod["metadata"]:
                    self.api.ask("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
                elif name not in self.seen:
                    self.seen.add(name)
                    begun = pod["metadata"]["creationTimestamp"]
                    containers = [{"name": "sandbox", "image": "", "imageID": "", "ready": True, "restartCount": 0,
                                   "state": {"running": {"startedAt": begun}}}]
                    self.api.ask("PATCH", f"{path}/{name}/status",
                                 {"status": {"phase": "Running", "startTime": begun, "containerStatuses": containers}},
                                 "application/merge-patch+json")
                    threading.Thread(target=self.play, args=(pod,), daemon=True).start()

    def play(self, pod):
        owner = pod["metadata"]["ownerReferences"][0]["name"]
        secret = self.api.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{owner}")
        (order,) = secret["data"].values()
        self.agent(json.loads(base64.b64decode(order))["facts"], self.ends)


def protocol(source):
    """The number of the agents' protocol: FNV-1a of the files that define it, as in src/records/protocol.rs."""
    value = 0xCBF29CE484222325
    for name in ("protocol.rs", "protocol/call.rs", "protocol/event.rs", "twins.rs", "account.rs", "shell.rs", "protocol/shell.rs",
                 "protocol/job.rs"):
        for byte in (Path(source) / "src/records" / name).read_bytes():
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def agent(number, authority):
    """Plays agents: each asks for its job, and says a line a second and that it lives every ten, as a build does."""
    context = ssl.create_default_context(cafile=authority)

    def plays(facts, ends):
        connection = http.client.HTTPSConnection(urlsplit(facts["server"]).netloc, context=context, timeout=120)
        route = f"/agent/v1/jobs/{facts['job']}"
        said = 0

        def ask(method, path, body=None):
            headers = {"authorization": f"Bearer {facts['token']}", "content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 400:
                raise LookupError(f"{method} {path}: {answer.status} {text[:300]}")

        ask("GET", f"{route}?protocol={number}")
        events = [{"step_started": "build"}]
        while True:
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            ask("POST", f"{route}/events", {"first": said, "events": [{"time": now, "what": what} for what in events]})
            said += len(events)
            if ends.wait(10):
                return
            events = [{"log": {"stream": "stdout", "text": f"Setting up package {said + line} of many ..."}} for line in range(10)]

    return plays


def wait_until(what, seconds, look):
    """Looks until that finds something, which it returns."""
    until = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.2)
    return found
