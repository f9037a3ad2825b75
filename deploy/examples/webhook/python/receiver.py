"""Receives siwad's webhooks: verifies each, and acts on it once. Needs the package standardwebhooks. Environment: SECRET, PORT."""
import http.server, os, sqlite3
from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["SECRET"])
database = sqlite3.connect(os.environ.get("DATABASE", "webhooks.db"))
database.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)")
database.execute("CREATE TABLE IF NOT EXISTS applied (subject TEXT PRIMARY KEY, position INTEGER)")


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        try:  # The library also refuses a timestamp that is five minutes off.
            event = webhook.verify(self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers))
            self.send_response(204)
        except (WebhookVerificationError, ValueError):
            return self.send_error(400)
        with database:  # One transaction: if acting fails, siwad gets no answer and sends the message again.
            message = database.execute("INSERT OR IGNORE INTO handled VALUES (?)", (self.headers["webhook-id"],))
            if message.rowcount and event["data"].get("position") and self.is_latest(event["type"], event["data"]):
                print(f"{event['data']['sub']}: {event['type']}", flush=True)  # Act here, in the same database.
        self.end_headers()

    def is_latest(self, type, data):
        subject = [data["team_id"], data["sub"], type.split(".")[1], data["scope"] == "app" and data["app_id"], data.get("session_id")]
        return database.execute("""INSERT INTO applied VALUES (?, ?) ON CONFLICT (subject) DO UPDATE
            SET position = excluded.position WHERE excluded.position > position""", (str(subject), data["position"])).rowcount


http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
