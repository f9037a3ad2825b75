"""Signs deliveries again with the reference library of Standard Webhooks, and prints those whose signature a test's receiver
judged differently.

Usage: verify.py SECRET FILE

Each line of FILE is a JSON object: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`, the body, and
whether the receiver accepted the signature. The library's own check also compares the timestamp with the present time, and
the delivery may have arrived minutes ago.
"""
import datetime, json, sys
from standardwebhooks import Webhook

webhook = Webhook(sys.argv[1])
for line in open(sys.argv[2]):
    delivery = json.loads(line)
    headers = delivery["headers"]
    time = datetime.datetime.fromtimestamp(int(headers.get("webhook-timestamp", 0)), datetime.timezone.utc)
    signature = webhook.sign(headers.get("webhook-id", ""), time, delivery["body"])
    is_accepted = signature in headers.get("webhook-signature", "").split(" ")
    if is_accepted != delivery["accepted"]:
        print(headers.get("webhook-id"), "accepted" if is_accepted else "refused")
