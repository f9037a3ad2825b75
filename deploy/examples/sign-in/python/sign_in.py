"""Signs a person in with what an app got from Apple. Environment: APPLICATION_SOCKET, CLIENT_ID; APPLICATION_TOKEN if tokens are configured.

sign_in.py nonce              makes a nonce for an attempt; the app passes its sha256 to Apple
sign_in.py NONCE <app.json    app.json: identityToken, authorizationCode, and user if Apple gave the name
"""
import hashlib, http.client, json, os, secrets, socket, sys


class Siwad(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(12)
        self.sock.connect(os.environ["APPLICATION_SOCKET"])

    def post(self, path, body):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('APPLICATION_TOKEN', '')}"}
        self.request("POST", path, json.dumps(body | {"client_id": os.environ["CLIENT_ID"]}), headers)
        response = self.getresponse()
        answer = json.load(response)
        if response.status != 200:
            sys.exit(f"{answer['action']}: {answer['detail']}")
        return answer


if sys.argv[1] == "nonce":
    print(json.dumps(Siwad("siwad").post("/v1/nonces", {})))
    sys.exit()
app = json.load(sys.stdin)
token = secrets.token_urlsafe(32)  # The app keeps it; siwad only gets a digest.
answer = Siwad("siwad").post("/v1/sign-in", {
    "identity_token": app["identityToken"], "authorization_code": app["authorizationCode"], "user": app.get("user"),
    "nonce": sys.argv[1],
    "session": {"id": hashlib.sha256(token.encode()).hexdigest(), "expires_in": 30 * 86400},
})
print(json.dumps({"token": token, "account": answer["account"]["id"], "name": answer["name"]}))
