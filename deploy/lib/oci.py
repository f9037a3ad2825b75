"""Writes an OCI image of a root file system, for deploy/image: oci.py ROOT.tar CONTAINERFILE VERSION ARCHITECTURE OUTPUT.tar

The configuration of the image comes from the last stage of the Containerfile, which has one instruction a line. The time
of everything is SOURCE_DATE_EPOCH, so that the same root gives the same image.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shlex
import sys
import tarfile
import time

SECONDS = {"s": 1, "m": 60}
FIELDS = {"USER": "User", "WORKDIR": "WorkingDir", "STOPSIGNAL": "StopSignal", "ENTRYPOINT": "Entrypoint", "CMD": "Cmd"}


def instructions(path):
    """The instructions of the last stage, as pairs of name and arguments."""
    stage = []
    with open(path, encoding="utf-8") as file:
        for line in re.sub(r"\\\n\s*", "", file.read()).splitlines():
            if line.strip() and not line.startswith("#"):
                name, _, rest = line.partition(" ")
                stage = [] if name == "FROM" else stage + [(name, rest.strip())]
    return stage


def nanoseconds(text):
    return int(text[:-1]) * SECONDS[text[-1]] * 10**9


def health_check(arguments):
    options, _, command = arguments.partition("CMD ")
    times = {name: nanoseconds(value) for name, value in re.findall(r"--([\w-]+)=(\w+)", options)}
    names = {"interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod"}
    return {"Test": ["CMD"] + json.loads(command)} | {names[name]: value for name, value in times.items()}


def configuration(stage):
    config = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "ExposedPorts": {}, "Labels": {}}
    for name, arguments in stage:
        if name in FIELDS:
            config[FIELDS[name]] = json.loads(arguments) if arguments.startswith("[") else arguments
        elif name == "ENV":
            config["Env"].append(arguments)
        elif name == "EXPOSE":
            config["ExposedPorts"][arguments] = {}
        elif name == "LABEL":
            key, value = shlex.split(arguments)[0].split("=", 1)
            config["Labels"][key] = value
        elif name == "HEALTHCHECK":
            config["Healthcheck"] = health_check(arguments)
        elif name not in ("COPY", "RUN"):
            sys.exit(f"oci.py: the instruction {name} is not known")
    return config


def main(root, containerfile, version, architecture, output):
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    with open(root, "rb") as file:
        layer = file.read()
    packed = gzip.compress(layer, 9, mtime=0)
    blobs = {}

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def document(value):
        return json.dumps(value, sort_keys=True).encode()

    config = configuration(instructions(containerfile))
    config["Labels"]["org.opencontainers.image.version"] = version
    image = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": created, "created_by": "deploy/image"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(document(image), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip")],
    }
    entry = blob(document(manifest), "manifest.v1+json") | {"annotations": {"org.opencontainers.image.ref.name": version}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    files = {"oci-layout": document({"imageLayoutVersion": "1.0.0"}), "index.json": document(index)}
    files |= {f"blobs/sha256/{digest}": content for digest, content in sorted(blobs.items())}
    with tarfile.open(output, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o644
            archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
