"""Receives siwad's webhooks: verifies each, and acts on it once. Needs the package standardwebhooks. Environment: SECRET, PORT."""
import base64, http.server, os, sqlite3, sys
from standardwebhooks import Webhook, WebhookVerificationError

secret = os.environ.get("SECRET", "")
if not secret.startswith("whsec_") or len(base64.b64decode(secret[6:], validate=True)) < 24: sys.exit("SECRET must be whsec_…")
database = sqlite3.connect(os.environ.get("DATABASE", "webhooks.db"))
database.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY, facet TEXT, position INTEGER)")


class Receiver(http.server.BaseHTTPRequestHandler):
    timeout = 10  # seconds without data; the server has one connection at a time

    def do_POST(self):
        try:  # The library also refuses a timestamp that is five minutes off.
            event = Webhook(secret).verify(self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers))
        except (WebhookVerificationError, ValueError):
            return self.send_error(400)
        with database:  # One transaction: if acting fails, siwad gets no answer and sends the event again.
            self.act(event["type"], event["data"])
        self.send_response(204)
        self.end_headers()

    def act(self, type, data):  # Here, in the same database.
        facet = str([data.get("team_id"), data.get("sub"), type.split(".")[1], data.get("scope") == "app" and data["app_id"]])
        row = (self.headers["webhook-id"], facet, data.get("position"))
        if not row[2] or not database.execute("INSERT OR IGNORE INTO handled VALUES (?, ?, ?)", row).rowcount: return
        if "sessions" in data or "session_id" in data:  # In any order, because what ended never comes back.
            print(f"{data['sub']}: end {data.get('session_id') or data['sessions']['created_until'] or 'all'}", flush=True)
        if database.execute("SELECT max(position) FROM handled WHERE facet = ?", (facet,)).fetchone()[0] == row[2]:
            print(f"{data['sub']}: {type}", flush=True)  # The person's state, unless a later change has set it.


http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
