-- A person's consents are looked up by the hash of account_id. Nearly every notification looks one up, right after its person,
-- and the way down the primary key's tree is three pages where this is one. Moving a consent's registers doesn't touch it.

CREATE INDEX consents_account ON siwa.consents USING hash (account_id);
