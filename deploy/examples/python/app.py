"""A web application that signs people in with Apple and keeps its sessions in siwad.

POST /sign-in takes the claims of an identity token that you have verified, GET / checks the session of a request, and
GET /newsletter lists the addresses to write to. Needs psycopg 3. Environment: DATABASE_URL, CLIENT_ID, PORT.
"""
import hashlib, http.server, json, os, secrets, sys, threading, time
import psycopg

DATABASE, CLIENT = os.environ["DATABASE_URL"], os.environ["CLIENT_ID"]


def rows(sql, *values):
    with psycopg.connect(DATABASE) as connection:
        return connection.execute(sql, values).fetchall()


def session_id(cookie):
    """The database has a digest, so that a reader of it can't use a session."""
    return hashlib.sha256(cookie.encode()).hexdigest()


class Application(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        claims = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sub, email, token = claims["sub"], claims.get("email"), secrets.token_urlsafe(32)
        try:
            with psycopg.connect(DATABASE) as connection:  # One transaction, before or after a deletion.
                connection.execute("SELECT siwa.record_sign_in(%s, %s, %s, %s, to_timestamp(%s))",
                                   (CLIENT, sub, email, claims.get("is_private_email"), claims["iat"]))
                [(is_live,)] = connection.execute(
                    "SELECT siwa.open_session(%s, %s, %s, to_timestamp(%s), now() + interval '30 days')",
                    (CLIENT, sub, session_id(token), claims["iat"]))
                if is_live:
                    connection.execute(
                        "INSERT INTO shop.subscribers AS s VALUES (%s, %s)"
                        " ON CONFLICT (sub) DO UPDATE SET email = coalesce(excluded.email, s.email)", (sub, email))
        except psycopg.Error as error:
            if error.sqlstate != "SW002":
                raise
            return self.answer(403, "This Apple Account was deleted.")
        if not is_live:  # The consent was revoked after Apple issued the token.
            return self.answer(401, "Sign in again.")
        self.answer(200, "Signed in.", ("Set-Cookie", f"session={token}; Max-Age=2592000; Secure; HttpOnly; SameSite=Lax"))

    def do_GET(self):
        if self.path == "/newsletter":
            return self.answer(200, "\n".join(email for (email,) in rows(
                "SELECT email FROM shop.subscribers AS s WHERE email IS NOT NULL AND NOT EXISTS"
                " (SELECT FROM siwa.undeliverable_addresses AS u WHERE u.email = s.email) ORDER BY email")))
        cookie = self.headers.get("Cookie", "").removeprefix("session=")
        [(is_live,)] = rows("SELECT siwa.session_is_live(%s)", session_id(cookie))
        self.answer(200 if is_live else 401, "Welcome." if is_live else "Sign in first.")

    def answer(self, status, text, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


def act_on_changes():
    """Acts on each change once: the position is stored in the transaction that acts."""
    with psycopg.connect(DATABASE) as connection:  # one transaction
        [(position,)] = connection.execute("SELECT position FROM shop.feed FOR UPDATE").fetchall()
        for position, sub, type in connection.execute(
                "SELECT position, sub, type FROM siwa.changes WHERE position > %s ORDER BY position LIMIT 100",
                (position,)).fetchall():
            print(f"{sub}: {type}", flush=True)
            if type == "siwa.account.deleted":
                connection.execute("DELETE FROM shop.subscribers WHERE sub = %s", (sub,))
        connection.execute("UPDATE shop.feed SET position = %s", (position,))


def follow_changes():
    while True:
        try:
            act_on_changes()
        except psycopg.Error as error:  # Such as a restart of PostgreSQL, which rolls the transaction back.
            print(error, file=sys.stderr)
        time.sleep(1)


threading.Thread(target=follow_changes, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Application).serve_forever()
