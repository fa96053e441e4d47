"""Measures for benches/kubernetes/run: `start WORK KEY RECIPE ROUNDS`, `many WORK KEY RECIPE JOBS SERVER`."""

import json
import os
import platform
import ssl
import sqlite3
import statistics
import sys
import time
import urllib.request
from pathlib import Path

import cluster
from cluster import NAMESPACE, Api, wait_until

what, work, key, recipe, count, *rest = sys.argv[1:]
work, count = Path(work), int(count)
api = Api(work / "rig")
said = dict(line.split("=", 1) for line in (work / "rig/env").read_text().replace("export ", "").split() if "=" in line)
context = ssl.create_default_context(cafile=str(work / "ca.pem"))
boot = (work / "boot_id").read_text().strip()


def kiln(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['KILN_TOKEN']}"}
    request = urllib.request.Request(os.environ["KILN_SERVER"] + path, data, headers, method=method)
    with urllib.request.urlopen(request, context=context) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def new_job():
    return kiln("POST", "/v3/jobs", {"job_type": "create", "artifact_id": recipe, "public_key_id": key,
                                     "image_root_archive_name": "bench"})["id"]


def records(query, *values):
    base = sqlite3.connect(f"file:{work}/data/records.sqlite?mode=ro", uri=True)
    try:
        return base.execute(query, values).fetchone()[0]
    finally:
        base.close()


def first_event():
    """Seconds from the request for a job to the first word of its agent."""
    job = new_job()
    first = lambda: records("select min(time) from job_log where job = ? and stream != 'server'", job)
    wait_until(f"the agent of job {job}", 300, first)
    took = (first() - records("select created from jobs where id = ?", job)) / 1e6
    kiln("POST", f"/kiln/v1/jobs/{job}/cancel")
    wait_until("the end of the job", 300, lambda: kiln("GET", f"/kiln/v1/jobs/{job}")["log"])
    return took


def bare_job(number):
    """Seconds from the request for a bare Job to the first word of its container, in a pod of the same class as Kiln's."""
    jobs, name = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", f"bare-{number}"
    spec = {"restartPolicy": "Never", "nodeSelector": {"kubernetes.io/hostname": said["KILN_RIG_NODE"]},
            "runtimeClassName": said["KILN_RIG_MACHINE"],
            "containers": [{"name": "sandbox", "image": said["KILN_RIG_IMAGE"], "imagePullPolicy": "Never",
                            "securityContext": {"capabilities": {"add": ["ALL"]}},
                            "command": ["/bin/cut", "-d", " ", "-f", "1", "/proc/uptime"]}]}
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)
    api.ask("POST", jobs, {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": spec}}})
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def word():
        # The node may say much later that the container has ended.
        for pod in api.ask("GET", f"{pods}?labelSelector=job-name%3D{name}")["items"]:
            try:
                return api.ask("GET", f"{pods}/{pod['metadata']['name']}/log")
            except LookupError:
                return None

    took = float(wait_until("the word of a bare Job", 300, word)) - begun
    api.ask("DELETE", f"{jobs}/{name}", {"propagationPolicy": "Foreground"})
    return took


def start():
    # The first one fills caches and is not measured.
    first_event()
    ours, bare = [], []
    for number in range(count):
        ours.append(first_event())
        bare.append(bare_job(number))
    row = lambda what, figures: print(f"{what:44} {statistics.median(figures):7.2f} s   ({min(figures):.2f} to {max(figures):.2f})")
    row("bare Job, to its container's first word", bare)
    row("job of Kiln, to its agent's first event", ours)
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"ratio {ratio:.2f} (goal: 2, {'met' if ratio <= 2 else 'NOT met'})")


def many(server):
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    number = cluster.protocol(Path.cwd())
    certificate = (str(work / "tls.pem"), str(work / "tls.key"))
    cluster.Played(api, arch, boot, certificate, cluster.agent(number, str(work / "ca.pem")))

    def stat():
        fields = Path(f"/proc/{server}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory():
        line = next(line for line in Path(f"/proc/{server}/status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1000

    # The server looks for nodes once a minute, and refuses jobs until it has found one.
    refused = lambda job: kiln("GET", f"/kiln/v1/jobs/{job}")["state"] == "error"

    def is_taken():
        job = new_job()
        wait_until("what becomes of a job", 60, lambda: refused(job) or kiln("GET", f"/kiln/v1/jobs/{job}")["step"])
        return not refused(job)

    wait_until("a place in the cluster", 150, is_taken)
    print(f"server at rest: {memory():.0f} MB")
    for _ in range(count - 1):
        new_job()
    running = lambda: records("select count(*) from jobs where json_extract(run, '$.step') = 'build' and json_extract(run, '$.ended') is null")
    wait_until(f"{count} running jobs", 900, lambda: running() >= count)
    # What their beginning cost is over.
    time.sleep(20)
    before, begun, peak = stat(), time.monotonic(), 0.0
    for _ in range(60):
        time.sleep(1)
        peak = max(peak, memory())
    share = 100 * (stat() - before) / (time.monotonic() - begun)
    still = running()
    print(f"{still} running jobs, a line a second each: {peak:.0f} MB (goal: 200, {'met' if peak < 200 else 'NOT met'}), "
          f"{share:.1f} % of a CPU (goal: 20, {'met' if share < 20 else 'NOT met'})")


if what == "start":
    start()
else:
    many(*rest)
