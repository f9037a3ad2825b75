"""Prints what is wrong with each line of a file, as an event and as the body of a webhook.

Usage: validate.py SCHEMA EVENTS
"""
import json, sys
from jsonschema import Draft202012Validator

schema = json.load(open(sys.argv[1]))
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
for line in open(sys.argv[2]):
    event = json.loads(line)
    body = {name: event[name] for name in ("type", "timestamp", "data")}
    for error in [*validator.iter_errors(event), *validator.iter_errors(body)]:
        print(f"{line.strip()}: {error.message}")
