"""Consumes the change feed as deploy/doc/changes.md says, and kills itself again and again.

Usage: consumer.py KILLS, with SIWAD_DATABASE_URL in the environment

Ends when `shop.stop` has a row and everything published is handled. `shop.effects` gets a row for each change, with the process
that acted on it.
"""
import os, random, signal, sys, time
import psycopg

URL = os.environ["SIWAD_DATABASE_URL"]

def consume(until_caught_up, committed=lambda: None):
    with psycopg.connect(URL) as connection:
        while True:
            with connection.transaction():
                [(position,)] = connection.execute("SELECT position FROM shop.feed FOR UPDATE").fetchall()
                changes = connection.execute(
                    "SELECT position, sub FROM siwa.changes WHERE position > %s ORDER BY position LIMIT 3",
                    (position,)).fetchall()
                for position, sub in changes:
                    connection.execute("INSERT INTO shop.effects (sub, pid) VALUES (%s, %s)", (sub, os.getpid()))
                connection.execute("UPDATE shop.feed SET position = %s", (position,))
            committed()
            if not changes and until_caught_up:
                return

kills = 0
with psycopg.connect(URL, autocommit=True) as observer:
    while kills < int(sys.argv[1]) or not observer.execute("SELECT FROM shop.stop").fetchall():
        commits, committing = os.pipe()
        child = os.fork()
        if child == 0:
            consume(False, lambda: os.write(committing, b"."))
        os.close(committing)
        # Counts commits, because on a busy machine a child may need longer than any fixed time for its first one.
        for _ in range(random.randrange(4)):
            os.read(commits, 1)
        time.sleep(random.uniform(0, 0.015))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(commits)
        kills += 1
consume(True)
print("killed", kills)
