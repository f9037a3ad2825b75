"""Verifies deliveries with the reference library of Standard Webhooks, and prints those on which a test's receiver disagrees.

Usage: verify.py SECRET FILE

Each line of FILE is a JSON object: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`, the body, and
whether the receiver accepted the signature.
"""
import json, sys
from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(sys.argv[1])
for line in open(sys.argv[2]):
    delivery = json.loads(line)
    try:
        webhook.verify(delivery["body"], delivery["headers"])
        is_accepted = True
    except WebhookVerificationError:
        is_accepted = False
    if is_accepted != delivery["accepted"]:
        print(delivery["headers"].get("webhook-id"), "accepted" if is_accepted else "refused")
