"""Prints the bill of materials of the package in CycloneDX 1.5, for deploy/package: sbom.py VERSION COMMIT ARCHITECTURE SWIFT

Reads the Swift packages from Package.resolved, and from standard input the Debian packages of the libraries that the binary
loads, as lines with name and version. The same input gives the same document.
"""

import json
import os
import sys
import time
import uuid

APACHE = [{"license": {"id": "Apache-2.0"}}]


def swift_package(pin):
    place = pin["location"].removeprefix("https://").removesuffix(".git")
    name, version = pin["identity"], pin["state"]["version"]
    purl = f"pkg:swift/{place}@{version}"
    # The revisions are left out: a mirror may have others for the same version.
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": APACHE}


def debian_package(line, architecture):
    name, version = line.split()
    purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "scope": "required"}


def main(version, commit, architecture, swift):
    with open("Package.resolved", encoding="utf-8") as file:
        pins = sorted(json.load(file)["pins"], key=lambda pin: pin["identity"])
    linked = [swift_package(pin) for pin in pins]
    runtime = {"type": "framework", "bom-ref": "swift-runtime", "name": "swift-runtime", "version": swift, "licenses": APACHE}
    loaded = [debian_package(line, architecture) for line in sys.stdin if line.strip()]
    siwad = {"type": "application", "bom-ref": "siwad", "name": "siwad", "version": version}
    siwad["properties"] = [{"name": "commit", "value": commit}]
    components = linked + [runtime] + loaded
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))),
            "component": siwad,
        },
        "components": components,
        "dependencies": [{"ref": "siwad", "dependsOn": [component["bom-ref"] for component in components]}],
    }
    # Derived from the content, so that it differs only if that does.
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True)).urn
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
