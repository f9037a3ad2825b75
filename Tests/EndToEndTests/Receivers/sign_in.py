"""Signs a person in as an application's backend does, with a client that was generated from the OpenAPI document alone.

Prints one line for each step. The device is the simulated Apple's.

Usage: sign_in.py DIRECTORY ADDRESS TOKEN CLIENT_ID APPLE
    DIRECTORY  holds the generated package siwad_client
    ADDRESS    of the application endpoint: unix:/path or a URL
"""
import json, sys, urllib.request

directory, address, token, client_id, apple = sys.argv[1:]
sys.path.insert(0, directory)

import httpx
from siwad_client import AuthenticatedClient, Client
from siwad_client.api.sessions import end_session, read_session
from siwad_client.api.sign_in import issue_nonce, sign_in
from siwad_client.models import Device, NewSession, NonceRequest, Problem, SignInRequest, User

if address.startswith("unix:"):
    options = {"transport": httpx.HTTPTransport(uds=address.removeprefix("unix:"))}
    client = Client(base_url="http://siwad", httpx_args=options)
else:
    client = AuthenticatedClient(base_url=address, token=token)


def device(nonce):
    """What the app gets from Apple on the device."""
    body = json.dumps({"client_id": client_id, "person": "maria", "nonce": nonce}).encode()
    request = urllib.request.Request(apple + "/simulator/sign-in", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


nonce = issue_nonce.sync(client=client, body=NonceRequest(client_id=client_id))
print("nonce", nonce.expires_in)
got = device(nonce.sha256)
request = SignInRequest(
    client_id=client_id, identity_token=got["identityToken"], authorization_code=got["authorizationCode"],
    nonce=nonce.nonce, user=User.from_dict(got.get("user") or {}),
    session=NewSession(id="generated", expires_in=3600), device=Device(platform="ios", model="iPhone17,2"),
)
person = sign_in.sync(client=client, body=request)
if isinstance(person, Problem):
    sys.exit(f"{person.reason}: {person.detail}")
print("signed in", person.account.client_id, person.account.state.lower(), person.new_account, person.refresh_token)
print("session", person.session.id, person.session.live, person.session.created_at == person.signed_in_at)
print("repeated", sign_in.sync(client=client, body=request).repeated)
request.session.id = "stolen"
refused = sign_in.sync(client=client, body=request)
print("refused", refused.status, refused.reason, refused.action.value)
print("live", read_session.sync("generated", client=client).live)
print("ended", end_session.sync_detailed("generated", client=client).status_code.value)
state = read_session.sync("generated", client=client)
print("live", state.live, state.end_reason)
print("unknown", read_session.sync("none", client=client).reason)
