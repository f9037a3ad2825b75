-- A person is looked up by the hash of sub. Every notification looks somebody up, and where millions of people are known that
-- is most of what it reads: this index takes less than half the room of the unique one, which keeps sub in full, and there is
-- no way down a tree in it. Moving a person's registers doesn't touch it.

CREATE INDEX accounts_sub ON siwa.accounts USING hash (sub);
