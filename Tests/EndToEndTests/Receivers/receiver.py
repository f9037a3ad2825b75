"""Receives webhooks, verifies them with the reference library, and prints a JSON object for each.

Usage: receiver.py SECRETS [REFUSALS] [--brief]

SECRETS is a file with a secret in each line (whsec_…, or whpk_… for Ed25519), which is read for each request. The first
REFUSALS requests get 500. A body that the published JSON Schema does not describe gets 400, as a wrong signature does, and
standard error says what is wrong with it. The first line of the output has the port. With --brief, each accepted change is a
line of its id, position, sub and notification, separated by tabs.
"""
import base64, http.server, json, pathlib, sys, threading
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jsonschema import Draft202012Validator
from standardwebhooks import Webhook, WebhookVerificationError

schema = pathlib.Path(__file__).resolve().parents[3] / "Schema/Events/v1.json"
validator = Draft202012Validator(json.loads(schema.read_text()))
lock = threading.Lock()
refusals = int(sys.argv[2]) if len(sys.argv) > 2 else 0
is_brief = "--brief" in sys.argv


def accepts(secret, body, headers):
    """Whether one of the signatures was made with a secret. The library knows HMAC only."""
    if secret.startswith("whsec_"):
        try:
            Webhook(secret).verify(body, headers)
            return True
        except WebhookVerificationError:
            return False
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(secret.removeprefix("whpk_")))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    for signature in headers["webhook-signature"].split(" "):
        if signature.startswith("v1a,"):
            try:
                key.verify(base64.b64decode(signature.removeprefix("v1a,")), signed)
                return True
            except InvalidSignature:
                continue
    return False


def is_described(body):
    problems = [error.message for error in validator.iter_errors(json.loads(body))]
    for problem in problems:
        print(problem, file=sys.stderr, flush=True)
    return not problems


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global refusals
        body = self.rfile.read(int(self.headers["Content-Length"]))
        secrets = [line.strip() for line in open(sys.argv[1]) if line.strip()]
        accepted = [number for number, secret in enumerate(secrets) if accepts(secret, body, dict(self.headers))]
        is_good = bool(accepted) and is_described(body)
        with lock:
            refusals, status = max(0, refusals - 1), 500 if refusals else 200 if is_good else 400
            # In the lock, so that lines don't mix.
            print(self.line(status, accepted, body.decode()), flush=True)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def line(self, status, accepted, body):
        if is_brief:
            data = json.loads(body)["data"]
            fields = [data["position"], data["sub"], data["notification"]] if status == 200 else [status]
            return "\t".join(str(field) for field in [self.headers["webhook-id"], *fields])
        return json.dumps({
            "id": self.headers["webhook-id"], "status": status, "accepted": accepted,
            "signatures": [s.split(",")[0] for s in self.headers["webhook-signature"].split(" ")],
            "type": self.headers["Content-Type"], "agent": self.headers["User-Agent"], "body": body,
        })

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
print(json.dumps({"port": server.server_port}), flush=True)
server.serve_forever()
