"""Sign in with Apple: a compact, tuned Python service that signs people in without trading the code.

POST /v1/sign-in  {"client_id", "identity_token", "nonce", "session": {"id", "expires_in"}}
    -> verify the caller and the token -> one PostgreSQL transaction -> 200 with the person

Environment: DATABASE_URL, JWKS_FILE, APPLE_AUDIENCES (comma separated), TOKEN, POOL_SIZE (per worker, default 8)
"""
import contextlib
import hashlib
import hmac
import os
from datetime import datetime, timedelta, timezone

import asyncpg
import jwt
import orjson
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from app import AUDIENCES, ISSUER, OK, Keys

MAX_BODY = 65_536
MAX_AGE = timedelta(days=1)
REQUIRED = ["iss", "aud", "iat", "exp", "sub", "nonce"]
TOKEN = hashlib.sha256(os.environ.get("TOKEN", "").encode()).digest()
RECORD = "SELECT * FROM sign_in($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"


def problem(status: int, reason: str) -> Response:
    body = orjson.dumps({"type": f"urn:problem:{reason}", "status": status, "reason": reason})
    return Response(body, status_code=status, media_type="application/problem+json")


def flag(value) -> bool:
    return value in (True, "true")


def verify(keys: Keys, client: str, token: str, nonce: str) -> dict:
    """Returns the claims; raises jwt.PyJWTError or ValueError."""
    key = keys.get(jwt.get_unverified_header(token).get("kid"))
    if key is None:
        raise jwt.InvalidKeyError("unknown kid")
    claims = jwt.decode(
        token, key, algorithms=["RS256"], audience=client, issuer=ISSUER, leeway=300, options={"require": REQUIRED},
    )
    if "events" in claims or not isinstance(claims["aud"], str):
        raise ValueError("not an identity token")
    if datetime.now(timezone.utc) - datetime.fromtimestamp(claims["iat"], timezone.utc) > MAX_AGE:
        raise ValueError("too old")
    digest = hashlib.sha256(nonce.encode()).hexdigest()
    if not (hmac.compare_digest(claims["nonce"], digest) or hmac.compare_digest(claims["nonce"], nonce)):
        raise ValueError("nonce")
    return claims


async def sign_in(request):
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(hashlib.sha256(bearer.encode()).digest(), TOKEN):
        return problem(401, "unauthenticated")
    body = await request.body()
    if len(body) > MAX_BODY:
        return problem(413, "body-too-large")
    try:
        members = orjson.loads(body)
        client, token, nonce = members["client_id"], members["identity_token"], members["nonce"]
        session, expires_in = members["session"]["id"], members["session"]["expires_in"]
        if not all(isinstance(text, str) for text in (client, token, nonce, session)) or client not in AUDIENCES:
            raise ValueError
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return problem(400, "malformed-request")
    try:
        claims = verify(request.app.state.keys, client, token, nonce)
    except (jwt.PyJWTError, ValueError, TypeError):
        return problem(422, "refused")
    at = datetime.fromtimestamp(claims["iat"], timezone.utc)
    email = claims.get("email") if flag(claims.get("email_verified")) else None
    private = flag(claims.get("is_private_email"))
    expires = datetime.now(timezone.utc) + timedelta(seconds=expires_in)
    try:
        row = await request.app.state.pool.fetchrow(
            RECORD, hashlib.sha256(token.encode()).digest(), hashlib.sha256(nonce.encode()).digest(), client, "shop",
            claims["sub"], email, private, at, session, expires,
        )
    except asyncpg.UniqueViolationError:
        return problem(422, "token-used")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        return problem(503, "database-unavailable")
    return Response(
        orjson.dumps({
            "sign_in_id": str(row["sign_in_id"]), "new_account": row["is_new"], "signed_in_at": at,
            "account": {"id": str(row["account"]), "sub": claims["sub"], "client_id": client, "state": row["state"]},
            "email": email and {"address": email, "verified": True, "private": private},
            "session": {"id": session, "live": True, "created_at": at, "expires_at": expires},
        }),
        media_type="application/json", headers={"cache-control": "no-store"},
    )


async def health(request):
    await request.app.state.pool.fetchval("SELECT 1")
    return OK


@contextlib.asynccontextmanager
async def lifespan(app):
    app.state.keys = Keys(os.environ.get("JWKS_FILE", "jwks.json"))
    size = int(os.environ.get("POOL_SIZE", "8"))
    async with asyncpg.create_pool(
        os.environ.get("DATABASE_URL", "postgresql:///siwa_peer"),
        min_size=size, max_size=size, command_timeout=10, max_inactive_connection_lifetime=0,
    ) as pool:
        app.state.pool = pool
        yield


app = Starlette(
    routes=[Route("/v1/sign-in", sign_in, methods=["POST"]), Route("/health", health, methods=["GET"])],
    lifespan=lifespan,
)
