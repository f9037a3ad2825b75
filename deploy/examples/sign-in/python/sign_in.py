"""Signs a person in with what an app got from Apple. Environment: APPLICATION_SOCKET, CLIENT_ID; APPLICATION_TOKEN if tokens are configured.

sign_in.py nonce              makes a nonce for an attempt; the app passes its sha256 to Apple
sign_in.py NONCE <app.json    app.json: identityToken, authorizationCode, and user if Apple gave the name
"""
import hashlib, http.client, json, os, secrets, socket, sys, time


class Siwad(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(12)
        self.sock.connect(os.environ["APPLICATION_SOCKET"])


def post(path, body):
    """Sends the same again if the answer was lost: siwad repeats it. No attempt begins after 15 seconds."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('APPLICATION_TOKEN', '')}"}
    end = time.monotonic() + 15
    while True:
        siwad, pause = Siwad("siwad"), 1
        try:
            siwad.request("POST", path, json.dumps(body | {"client_id": os.environ["CLIENT_ID"]}), headers)
            response = siwad.getresponse()
            answer = json.load(response)
            if response.status == 200:
                return answer
            problem = f"{answer['action']}: {answer['detail']}"
            pause = int(response.headers.get("Retry-After", 1)) if answer["action"] == "retry" else float("inf")
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = str(error)
        if time.monotonic() + pause > end:
            sys.exit(problem)
        time.sleep(pause)


if sys.argv[1] == "nonce":
    print(json.dumps(post("/v1/nonces", {})))
    sys.exit()
app = json.load(sys.stdin)
token = secrets.token_urlsafe(32)  # The app keeps it; siwad only gets a digest.
answer = post("/v1/sign-in", {
    "identity_token": app["identityToken"], "authorization_code": app["authorizationCode"], "user": app.get("user"),
    "nonce": sys.argv[1],
    "session": {"id": hashlib.sha256(token.encode()).hexdigest(), "expires_in": 30 * 86400},
})
print(json.dumps({"token": token, "account": answer["account"]["id"], "name": answer["name"]}))
